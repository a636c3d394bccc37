"""What is asked of a score, and whether the bound decides it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from detdiag.score import bound
from detdiag.score.sample import Sample
from detdiag.score.units import Units, units_per_cycle

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the score: a target for pairwise agreement, or none."""

    target: float | None = None
    confidence: float = CONFIDENCE

    @property
    def alpha(self) -> float:
        return 1.0 - self.confidence


def decide(sample: Sample, units: Units, question: Question) -> dict[str, Any]:
    """Bounds of the agreement and, with a target, whether it is reached, missed or open."""
    low = bound.lower(units.tally, question.alpha)
    high = bound.upper(units.tally, question.alpha)
    status = "measured"
    if question.target is not None:
        status = "undecided"
        if low >= question.target:
            status = "reached"
        elif high < question.target:
            status = "missed"
    reason = "" if units.values else "unbounded"
    if sample.cached:
        status, reason = "undecided", "cache"
    return {
        "status": status,
        "reason": reason,
        "target": question.target,
        "bound": {
            "lower": low if units.values else None,
            "upper": high if units.values else None,
            "confidence": question.confidence,
            "units": len(units.values),
            "disagree": units.disagree,
            "prompts": units.prompts,
            "merged": units.merged,
            "skipped": list(units.skipped),
        },
    }


def runs_for_units(units: int, prompts: int, conditions: int, merged: bool) -> int:
    """Runs of each prompt under each condition that make at least ``units`` comparisons."""
    return 2 * conditions * math.ceil(units / units_per_cycle(max(prompts, 1), conditions, merged))
