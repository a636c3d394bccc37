"""Runs of a local model: solo calls, and batches in which the prompts share one call.

A solo run is a call of ``generate`` with one row, repeated; runs are never shared out of one
forward. In a batch the prompts themselves are the neighbours, so one call gives one run of each
prompt, and each run of a prompt comes from another call. Runs of one condition are made together,
a block at a time, and blocks change places so that a drift cannot pose as a condition.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detdiag.evidence.observation import Observation, Output
from detdiag.evidence.record import RecordWriter
from detdiag.probes._compare import row_digests
from detdiag.score.plan import Plan, Tell, Watch
from detdiag.score.progress import Progress
from detdiag.score.rounds import windows
from detdiag.targets.generated import Generated
from detdiag.targets.local import LocalTarget, Prompt, default_prompts

BATCH: Final = 8
"""Most prompts that share a batch."""
LONGEST_IDS: Final = 512
"""Prompt ids up to this length are kept with every run, longer ones with the first round only."""


@dataclass(slots=True)
class LocalRuns:
    """One scoring of a local model; ``stopped`` says at the end why it ended."""

    target: LocalTarget
    plan: Plan
    record: RecordWriter
    watch: Watch
    progress: Progress
    stopped: str = ""
    tokens: int = 0
    samples: bool = False

    def go(self, tell: Tell) -> None:
        """Warm up, print the plan with its cost, and run until done, decided or out of time."""
        began = time.monotonic()
        self.samples = self.target.samples()
        self._warm_up()
        first_s = [self._timed(condition) for condition in self.plan.conditions]
        for line in self.plan.lines(first_s):
            tell(line)
        self.progress.start(self.plan.runs)
        done, order = 1, list(self.plan.conditions)
        while done < self.plan.runs and not self.stopped:
            until = min(self.plan.runs, (done // self.plan.block + 1) * self.plan.block)
            for condition in order:
                for number in range(done, until):
                    self._round(condition, number)
                    self.progress.at(done, until, number, condition)
            done = until
            order.reverse()
            self._maybe_stop(began)
        self.stopped = self.stopped or "all runs made"

    def _maybe_stop(self, began: float) -> None:
        if decided := self.watch.decided():
            self.stopped = f"target {decided}"
        elif self.plan.budget_s is not None and time.monotonic() - began > self.plan.budget_s:
            self.stopped = "out of budget"

    def _warm_up(self) -> None:
        """The first call pays for allocations; it is no run, as nothing else is made like it."""
        ids = self.target.encode(self.target.prompts[0])
        self.target.generate([ids], max_new_tokens=1)

    def _timed(self, condition: str) -> float:
        began = time.monotonic()
        self._round(condition, 0)
        return time.monotonic() - began

    def _round(self, condition: str, number: int) -> None:
        """One run of every prompt under ``condition``."""
        for group in self._groups(condition):
            made = self._call(group)
            for row, prompt in enumerate(group.prompts[: group.measured]):
                self._keep(condition, number, group, row, prompt, made[row])

    def _groups(self, condition: str) -> Iterator[_Group]:
        prompts = self.target.prompts
        if condition == "solo":
            yield from (_Group((p,), 1, f"{p.id}") for p in prompts)
            return
        if len(prompts) == 1:
            fillers = tuple(p for p in default_prompts() if p.text != prompts[0].text)
            yield _Group((prompts[0], *fillers), 1, "g0")
            return
        for place, window in enumerate(windows(prompts, BATCH)):
            yield _Group(window, len(window), f"g{place}")

    def _call(self, group: _Group) -> list[Generated]:
        group.ids = [self.target.encode(p) for p in group.prompts]
        return self.target.generate(group.ids, max_new_tokens=self.plan.max_new_tokens)

    def _keep(
        self, condition: str, number: int, group: _Group, row: int, prompt: Prompt, made: Generated
    ) -> None:
        """Write one run. Its padding follows from the prompts of its batch, so it is no factor of
        its own: it would only seem to vary beside the batch."""
        ids = group.ids[row]
        one = Observation(
            id=f"{condition}-{number}-{prompt.id}",
            query=prompt.id,
            surface="hf.generate_kwargs",
            prompt_token_ids=ids if len(ids) <= LONGEST_IDS or number == 0 else None,
            output=Output(
                text=made.text,
                token_ids=made.token_ids,
                finish_reason=made.finish_reason,
                logit_digests=row_digests(made.step_logits) if len(made.step_logits) else (),
            ),
            factors={
                "batch_size": len(group.prompts),
                "row": row,
                "neighbours": [p.id for i, p in enumerate(group.prompts) if i != row],
                "process": "this one",
                "do_sample": self.samples,
                "repeat": number,
            },
            response={"context": {"burst": f"{group.name}-{number}", "round": number}},
        )
        self.tokens += len(made.token_ids)
        self.record.write(one)
        self.watch.observations.append(one)


@dataclass(slots=True)
class _Group:
    """The rows of one call; the first ``measured`` of them are prompts under test."""

    prompts: tuple[Prompt, ...]
    measured: int
    name: str
    ids: Sequence[tuple[int, ...]] = ()


def target_facts(target: LocalTarget) -> dict[str, Any]:
    """The target as the record's header names it."""
    return {
        "kind": "local",
        "name": target.name,
        "device": target.device,
        "dtype": target.dtype,
        "prompts": len(target.prompts),
    }
