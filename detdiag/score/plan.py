"""What a score will do and cost, told before it is done, and when it may stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from detdiag.errors import DetdiagError
from detdiag.evidence.observation import Observation
from detdiag.score import bound
from detdiag.score.gate import Question, runs_for_units
from detdiag.score.units import units_per_cycle

LOOK_RUNS: Final = 12
"""Runs of each prompt under each condition between two looks at the bound, at least."""

Tell = Callable[[str], None]
"""Takes one line for the person at the terminal."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``runs`` of each of ``prompts`` under each of ``conditions``. ``merged``: one call serves
    several prompts. ``budget_s`` None: no limit of time. ``copies``: runs of a prompt that one
    burst of load holds."""

    prompts: int
    runs: int
    conditions: tuple[str, ...]
    max_new_tokens: int
    question: Question
    merged: bool
    budget_s: float | None = None
    copies: int = 1

    @property
    def total_runs(self) -> int:
        return self.prompts * self.runs * len(self.conditions)

    @property
    def block(self) -> int:
        """Rounds between two looks: whole cycles of comparisons."""
        cycle = 2 * len(self.conditions) * self.copies
        return cycle * -(-LOOK_RUNS // cycle)

    @property
    def most_units(self) -> int:
        """Comparisons that all runs together make."""
        calls = -(-self.runs // self.copies)
        cycles = calls // (2 * len(self.conditions))
        return cycles * units_per_cycle(self.prompts, len(self.conditions), self.merged)

    def lines(self, first_s: Sequence[float], prompt_tokens: float | None = None) -> list[str]:
        """The plan in words. ``first_s``: seconds of the first round of each condition;
        ``prompt_tokens``: tokens of a prompt on average, where a server counts them."""
        seconds = self.runs * sum(first_s)
        tokens = self.total_runs * self.max_new_tokens
        out = [
            f"plan: {self.prompts} prompt{'s' if self.prompts != 1 else ''} x "
            f"{self.runs} runs x {len(self.conditions)} conditions "
            f"({', '.join(self.conditions)}) = {self.total_runs} runs, "
            f"at most {tokens} new tokens, about {seconds:.0f} s",
        ]
        if prompt_tokens is not None:
            read = round(self.total_runs * prompt_tokens)
            out.append(f"      {self.total_runs} requests, about {read} prompt tokens")
        if self.budget_s is not None and seconds > self.budget_s:
            out.append(
                f"      the budget of {self.budget_s:.0f} s ends it after about "
                f"{self.runs * self.budget_s / seconds:.0f} runs"
            )
        return out + self._stop_lines()

    def _stop_lines(self) -> list[str]:
        question, best = self.question, bound.best_possible(self.most_units, self.question.alpha)
        shown = f"{question.confidence:g}"
        if question.target is None:
            return [f"      if every run agrees, it shows an agreement above {best:.4f} at {shown}"]
        need = bound.units_for(question.target, question.alpha)
        calls = runs_for_units(need, self.prompts, len(self.conditions), self.merged)
        runs = calls * self.copies
        if best >= question.target:
            return [
                f"      it stops early when the bound decides about {question.target:g} at "
                f"{shown}: not before {runs} runs a prompt and condition"
            ]
        return [
            f"      these runs can show at most {best:.4f}; for {question.target:g} at {shown} "
            f"ask for --runs {runs} or more prompts"
        ]


def parse_conditions(text: str | None, allowed: Sequence[str]) -> tuple[str, ...]:
    """``solo,batch``: each known, each once; the default is everything allowed."""
    if text is None:
        return tuple(allowed)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in allowed:
            import difflib

            close = difflib.get_close_matches(name, allowed, n=1)
            tip = f"did you mean {close[0]!r}?" if close else f"one of {', '.join(allowed)}"
            raise DetdiagError(f"condition {name!r} cannot be had here", tip=tip)
    if not names:
        raise DetdiagError("--conditions names none", tip=f"one of {', '.join(allowed)}")
    return names


def parse_question(target: float | None, confidence: float) -> Question:
    """The question with its numbers checked."""
    if target is not None and not 0.0 < target < 1.0:
        tip = "1 itself can never be shown by any number of runs" if target == 1.0 else None
        raise DetdiagError(f"--target {target:g}: expected a number between 0 and 1", tip=tip)
    if not 0.5 <= confidence < 1.0:
        raise DetdiagError(f"--confidence {confidence:g}: expected 0.5 or more and below 1")
    return Question(target, confidence)


class Watch:
    """Collects runs and says when the bound has decided."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.observations: list[Observation] = []

    def decided(self) -> str:
        """``reached``, ``missed`` or nothing, on everything seen so far."""
        if self.question.target is None:
            return ""
        from detdiag.score.gate import decide
        from detdiag.score.sample import sample_of
        from detdiag.score.units import units_of

        sample = sample_of(self.observations)
        status = decide(sample, units_of(sample), self.question)["status"]
        return status if status in ("reached", "missed") else ""
