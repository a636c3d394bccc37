"""The temperature that the server's choices show, by maximum likelihood over its own numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detdiag.evidence.observation import Observation
from detdiag.verdict.mechanisms import moves_argmax
from detdiag.verdict.outcome import own_key, vector

GRID: Final = tuple(10 ** (-3 + 0.02 * i) for i in range(166))
"""Temperatures from 0.001 to 2."""
HALF_WIDTH: Final = 1.92
"""Fall of the log-likelihood at the ends of a 95 % interval (half of chi-square 3.84)."""
DRAW_SLACK_NAT: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Choice:
    """One chosen token: how far below the best it lies, and the gaps of all alternatives."""

    gap_nat: float
    gaps: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Effective:
    """``below`` of ``tokens`` lie below their arg-max; ``ties`` of them chose among exact ties.

    ``estimate`` and ``interval`` are temperatures (None where no choice was below the best);
    ``upper`` is the highest temperature that the choices still allow (95 %)."""

    tokens: int
    below: int
    expected_at_one: float
    estimate: float | None
    interval: tuple[float, float] | None
    upper: float | None

    def to_dict(self) -> dict[str, Any]:
        keys = ("tokens", "below", "expected_at_one", "estimate", "interval", "upper")
        return {k: getattr(self, k) for k in keys}


def choices(observations: Iterable[Observation]) -> list[Choice]:
    """Chosen tokens whose alternatives are known, penalties and grammars left out."""
    out = []
    for one in observations:
        if moves_argmax(one):
            continue
        for position in one.output.positions or ():
            values = vector(position)
            own = own_key(position)
            if not values or len(values) < 2 or own not in values:
                continue
            best = max(values.values())
            gaps = tuple(best - v for v in values.values())
            out.append(Choice(best - values[own], gaps))
    return out


def effective_temperature(found: Sequence[Choice]) -> Effective:
    """Maximum likelihood of one temperature for all choices (the listed alternatives stand for
    the vocabulary; what they leave out only makes a high temperature less likely)."""
    if not found:
        return Effective(0, 0, 0.0, None, None, None)
    below = sum(c.gap_nat > DRAW_SLACK_NAT for c in found)
    expected = sum(1.0 - _chance(c, 1.0) for c in found)
    curve = list(zip(GRID, _log_likelihoods(found), strict=True))
    best_t, best = max(curve, key=lambda point: point[1])
    inside = [t for t, value in curve if value >= best - HALF_WIDTH]
    if not below:
        return Effective(len(found), 0, expected, None, None, max(inside))
    return Effective(len(found), below, expected, best_t, (min(inside), max(inside)), max(inside))


def _log_likelihoods(found: Sequence[Choice]) -> list[float]:
    """One sum over all choices for each temperature of the grid."""
    import numpy as np

    width = max(len(c.gaps) for c in found)
    gaps = np.full((len(found), width), np.inf)
    for row, choice in zip(gaps, found, strict=True):
        row[: len(choice.gaps)] = choice.gaps
    own = sum(c.gap_nat for c in found)
    return [float(-own / t - np.log(np.exp(-gaps / t).sum(axis=1)).sum()) for t in GRID]


def _log_chance(choice: Choice, temperature: float) -> float:
    total = sum(math.exp(-g / temperature) for g in choice.gaps)
    return -choice.gap_nat / temperature - math.log(total)


def _chance(choice: Choice, temperature: float) -> float:
    return math.exp(_log_chance(choice, temperature))


def expected_draws(found: Sequence[Choice], temperature: float) -> float:
    """Choices below the best that ``temperature`` would have made among these alternatives."""
    total = 0.0
    for choice in found:
        weights = [math.exp(-g / temperature) for g in choice.gaps]
        tied = sum(w for w, g in zip(weights, choice.gaps, strict=True) if g <= DRAW_SLACK_NAT)
        total += 1.0 - tied / sum(weights)
    return total
