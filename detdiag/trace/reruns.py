"""Runs of one call under identical conditions, plain or with something frozen."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from torch import Tensor, nn

from detdiag.trace.bits import bit_equal
from detdiag.trace.calls import ForwardCall
from detdiag.trace.effects import SAME, Distance, distance
from detdiag.trace.freezing import Frozen, frozen_run
from detdiag.trace.heat import Heat
from detdiag.trace.oplog import Trace
from detdiag.trace.recorder import record
from detdiag.trace.result import Effect
from detdiag.trace.state import Snapshot

CHECKS = 4
"""Runs under an intervention; all must agree with the first."""


@dataclass
class Reruns:
    model: nn.Module
    call: ForwardCall
    deadline: float
    seed: int
    start_state: Snapshot
    slowest_s: float = 0.0
    interventions: list[Effect] = field(default_factory=list)
    placebos: list[Effect] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def has_time(self, forwards: float, what: str) -> bool:
        if time.monotonic() + forwards * self.slowest_s <= self.deadline:
            return True
        self.skipped.append(what)
        return False

    def plain(self, frozen: Frozen | None = None) -> Tensor:
        start = time.monotonic()
        with frozen_run(self.model, self.start_state, frozen or Frozen()):
            out = self.call.run(self.model)
        self.slowest_s = max(self.slowest_s, time.monotonic() - start)
        return out


def control(run: Reruns, reference: Tensor, pairs: int) -> tuple[int, int, Tensor]:
    """(differing, runs compared, the first run that differed) against ``reference``."""
    differing, done, example = 0, 0, reference
    for _ in range(pairs):
        if done >= 2 and not run.has_time(1, f"{pairs - done} of {pairs} reruns"):
            break
        again = run.plain()
        done += 1
        if not bit_equal(reference, again):
            example = again if differing == 0 else example
            differing += 1
            if differing >= 3 and done >= min(pairs, 10):
                break
    return differing, done, example


def differing_traces(
    run: Reruns, frozen: Frozen, attempts: int, heat: Heat | None = None
) -> tuple[Trace, Trace] | None:
    """Two traced runs whose logits differ, or None."""
    with frozen_run(run.model, run.start_state, frozen):
        a = record(
            run.model, run.call, whole=True, watch_random=True, sink=heat.keep if heat else None
        )
    for _ in range(attempts):
        if not run.has_time(2, "another traced pair"):
            return None
        with frozen_run(run.model, run.start_state, frozen):
            b = record(
                run.model,
                run.call,
                whole=True,
                watch_random=True,
                sink=heat.compare if heat else None,
            )
        if not bit_equal(a.logits, b.logits):
            return a, b
    return None


def check(run: Reruns, frozen: Frozen) -> tuple[Distance, int]:
    """Worst distance of ``CHECKS`` runs to the first, all under the intervention."""
    first = run.plain(frozen)
    worst, differing = SAME, 0
    for _ in range(CHECKS):
        again = run.plain(frozen)
        if bit_equal(first, again):
            continue
        differing += 1
        found = distance(flat(first), flat(again))
        worst = found if found.max_abs_logit >= worst.max_abs_logit else worst
    return worst, differing


def flat(logits: Tensor) -> Tensor:
    return logits.reshape(-1, logits.shape[-1])
