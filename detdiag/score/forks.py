"""Where do two runs part? First fork, hazard per thousand tokens, survival of the common prefix.

A position after the first fork has another context, so nothing is compared beyond it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detdiag.score.pairs import Pair


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two runs: they agree on ``common`` positions; ``forked`` is False where one of them simply
    ends there (equal outputs, or the shorter was cut by its length limit)."""

    common: int
    forked: bool
    weight: float

    @property
    def compared(self) -> int:
        """Positions compared, the fork included."""
        return self.common + 1 if self.forked else self.common


def common_prefix(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Length of the longest common prefix."""
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:
        return shorter
    low, high = 0, shorter
    while high - low > 1:
        middle = (low + high) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle
    return low


def meetings(
    pairs: Sequence[Pair], units: Mapping[Any, Sequence[Any]], cut: frozenset[Any]
) -> list[Meeting]:
    """One meeting per weighted pair. ``units``: the tokens (or characters) of each output;
    ``cut``: outputs that their length limit ended."""
    out = []
    for a, b, weight in pairs:
        if a == b:
            out.append(Meeting(len(units[a]), False, weight))
            continue
        left, right = units[a], units[b]
        common = common_prefix(left, right)
        shorter = a if len(left) <= len(right) else b
        ended = common == len(units[shorter])
        whole = len(left) == len(right)
        out.append(Meeting(common, not (ended and (whole or shorter in cut)), weight))
    return out


def hazard_parts(found: Sequence[Meeting]) -> tuple[float, float]:
    """(weight of forks, weighted positions compared): their ratio is the fork hazard."""
    return (
        sum(m.weight for m in found if m.forked),
        sum(m.weight * m.compared for m in found),
    )


def first_fork(found: Sequence[Meeting]) -> int | None:
    """The earliest 0-based position at which any two runs part."""
    return min((m.common for m in found if m.forked), default=None)


def median_fork(found: Sequence[Meeting]) -> int | None:
    """The weighted median of the fork position over the pairs that part."""
    forks = sorted((m.common, m.weight) for m in found if m.forked)
    half, seen = sum(w for _, w in forks) / 2, 0.0
    for place, weight in forks:
        seen += weight
        if seen >= half:
            return place
    return None


def survival(found: Sequence[Meeting]) -> tuple[list[int], list[float]]:
    """Share of pairs that still share their first t positions, by Kaplan and Meier (J. Am. Stat.
    Assoc. 53, 1958): pairs that end without a fork leave the count at their end.

    Steps as (positions, share from that position on), starting at (0, 1).
    """
    events: dict[int, float] = defaultdict(float)
    leaving: dict[int, float] = defaultdict(float)
    for m in found:
        (events if m.forked else leaving)[m.common] += m.weight
    at_risk = sum(m.weight for m in found)
    places, shares, share = [0], [1.0], 1.0
    for place in sorted({*events, *leaving}):
        if events[place] and at_risk > 1e-12:
            share *= max(0.0, 1.0 - events[place] / at_risk)
            places.append(place + 1)
            shares.append(share)
        at_risk -= events[place] + leaving[place]
    end = max((m.compared for m in found), default=0)
    if end > places[-1]:
        places.append(end)
        shares.append(share)
    return places, shares
