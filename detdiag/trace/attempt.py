"""State of one proof across batch shapes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from detdiag.trace.calls import ForwardCall
from detdiag.trace.fixes import Fix
from detdiag.trace.labels import Labelled
from detdiag.trace.result import Effect


@dataclass
class Run:
    """State of one proof."""

    model: nn.Module
    solo: ForwardCall
    batched: ForwardCall
    row: int
    deadline: float
    seed: int
    reference: Tensor = field(default_factory=lambda: torch.empty(0))
    as_is: Tensor = field(default_factory=lambda: torch.empty(0))
    interventions: list[Effect] = field(default_factory=list)
    placebos: list[Effect] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    base: Fix = field(default_factory=Fix)

    def rows(self, logits: Tensor) -> Tensor:
        return self.batched.row_logits(logits, self.row)

    def has_time(self, forwards: float, what: str) -> bool:
        """Whether about ``forwards`` more batched runs fit; notes what was left out."""
        if time.monotonic() + forwards * self.slowest_s <= self.deadline:
            return True
        self.skipped.append(what)
        return False

    def timed(self, action: Callable[[], Tensor]) -> tuple[Tensor, float]:
        start = time.monotonic()
        out = action()
        wall = time.monotonic() - start
        self.slowest_s = max(self.slowest_s, wall)
        return out, wall


def name_of(item: Labelled) -> str:
    return f"{item.op.name} in {item.op.frame.path or 'the model'}"
