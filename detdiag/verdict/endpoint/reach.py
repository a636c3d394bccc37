"""How far the replies under load went, and from where on they moved: kernels that share one long
context among threads or thread blocks do so from some length on, and shorter replies say nothing
about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detdiag.verdict.endpoint.samples import Sample, usage


@dataclass(frozen=True, slots=True)
class Reach:
    """Longest context (prompt and answer) and longest answer in tokens, 0 where the server does
    not count them; ``cut``: the longest answer ended at our limit, not by itself."""

    context_tokens: int = 0
    answer_tokens: int = 0
    cut: bool = False

    def words(self) -> str:
        if not self.context_tokens:
            return ""
        return f"; tried in contexts of up to {self.context_tokens} tokens"


def reach_of(samples: Sequence[Sample]) -> Reach:
    longest = max(samples, key=_answer, default=None)
    if longest is None:
        return Reach()
    whole = max(usage(s.observation, "prompt_tokens") + _answer(s) for s in samples)
    cut = longest.observation.output.finish_reason == "length"
    return Reach(whole if _counted(longest) else 0, _answer(longest), cut)


@dataclass(frozen=True, slots=True)
class Start:
    """Bits first move in a context of ``context_tokens``; the shortest one compared has
    ``shortest_tokens``."""

    context_tokens: int
    shortest_tokens: int

    def words(self) -> str:
        if self.context_tokens <= self.shortest_tokens:
            return ""
        if self.context_tokens == self.shortest_tokens + 1:
            return "; the first token keeps its bits, the ones after it (decode steps) move"
        return (
            f"; contexts of {self.context_tokens} tokens and more move, shorter ones (from "
            f"{self.shortest_tokens} tokens on) keep their bits"
        )


def start_of(idle: Sequence[Sample], bursts: Sequence[Sample]) -> Start | None:
    """The shortest context in which a reply under load leaves the idle one; None where tokens are
    not counted or log-probabilities are missing. The context of token ``i`` of an answer is the
    prompt and the ``i`` tokens before it."""
    answers = {s.group: s for s in idle}
    moved, shortest = [], []
    for one in bursts:
        prompt, rows = usage(one.observation, "prompt_tokens"), one.observation.output.positions
        if not prompt or not rows:
            continue
        shortest.append(prompt)
        calm = answers[one.group]
        if one.outcome != calm.outcome:
            pairs = enumerate(zip(rows, calm.observation.output.positions or (), strict=False))
            moved += [prompt + index for index, (a, b) in pairs if a != b][:1]
    return Start(min(moved), min(shortest)) if moved else None


def _answer(sample: Sample) -> int:
    return usage(sample.observation, "completion_tokens")


def _counted(sample: Sample) -> bool:
    return usage(sample.observation, "prompt_tokens") > 0
