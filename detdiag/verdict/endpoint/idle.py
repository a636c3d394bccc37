"""The idle baseline: does it repeat, and if not, is it a few answers or always new ones?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from detdiag.verdict.endpoint.samples import Sample, by_group

ENOUGH: Final = 16
CONTINUOUS_UNSEEN: Final = 0.5
FINITE_UNSEEN: Final = 0.25
Spread = Literal["one", "finite", "continuous", "open"]


@dataclass(frozen=True, slots=True)
class Idle:
    """The group with most outcomes: ``k`` distinct among ``n``, ``once`` of them seen once.

    ``chao1`` estimates all outcomes there are; ``spread`` is open where n is too small."""

    n: int
    k: int
    once: int
    chao1: float
    spread: Spread
    groups: int
    groups_apart: int

    def words(self) -> str:
        if self.spread == "continuous":
            return f"{self.k} different answers in {self.n} replies, most of them seen once"
        return f"{self.k} different answers in {self.n} replies (about {self.chao1:.0f} in all)"


def idle_summary(samples: Sequence[Sample]) -> Idle | None:
    """Classify the idle arm; None where there is none. Chao1: k + f1 (f1 - 1) / (2 (f2 + 1))."""
    groups = by_group(s for s in samples if s.arm == "idle")
    if not groups:
        return None
    widest = max(groups.values(), key=lambda g: (len({s.outcome for s in g}), len(g)))
    counts = Counter(s.outcome for s in widest)
    n, k = len(widest), len(counts)
    once = sum(c == 1 for c in counts.values())
    twice = sum(c == 2 for c in counts.values())
    chao1 = k + once * (once - 1) / (2 * (twice + 1))
    apart = sum(len({s.outcome for s in g}) > 1 for g in groups.values())
    return Idle(n, k, once, chao1, _spread(n, k, once), len(groups), apart)


def _spread(n: int, k: int, once: int) -> Spread:
    if k == 1:
        return "one"
    if n >= ENOUGH and once / n > CONTINUOUS_UNSEEN:
        return "continuous"
    return "finite" if once / n <= FINITE_UNSEEN else "open"
