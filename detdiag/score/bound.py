"""Bounds on a mean of agreements that stay valid however often one looks and when one stops.

A unit is a number in [0, 1]: how far two independent calls agree. To doubt "the mean is at most
m", bet a fraction f of one's capital on each unit: the capital is multiplied by
1 + f (x - m) / m, which grows on average only if the mean is above m. By Ville's inequality the
capital ever reaches 1/alpha with probability at most alpha if the claim is true, so every m whose
bet reaches 1/alpha is excluded, at any time (Waudby-Smith and Ramdas, J. R. Stat. Soc. B 86, 2024).
Several fractions share the starting capital. Half of it is on f = 1, where the capital after U
units that all agree is m**-U: the bound is then Clopper-Pearson's at no event with half the error.

Units of one cycle may have different means (prompts differ): with f fixed, the product over the
cycle is largest, on average, when all are equal, so the bound holds for their average.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

_FRACTIONS: Final = (0.95, 0.9, 0.8, 0.6, 0.4, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
LOWER_BETS: Final = ((1.0, 0.5), *((f, 0.5 / len(_FRACTIONS)) for f in _FRACTIONS))
UPPER_BETS: Final = tuple((f, 1.0 / len(_FRACTIONS)) for f in _FRACTIONS)
_STEPS: Final = 60

Tally = Mapping[float, int]
"""How many units had each value."""


def tally(units: Iterable[float]) -> Counter[float]:
    return Counter(units)


def log_capital(units: Tally, mean: float, bets: Iterable[tuple[float, float]]) -> float:
    """Natural logarithm of the capital of a bettor against "the mean is at most ``mean``"."""
    logs = [
        math.log(share) + sum(n * _log_growth(f, x, mean) for x, n in units.items() if n)
        for f, share in bets
    ]
    top = max(logs)
    return top if top == -math.inf else top + math.log(sum(math.exp(v - top) for v in logs))


def _log_growth(fraction: float, x: float, mean: float) -> float:
    grown = 1.0 + fraction * (x / mean - 1.0)
    return math.log(grown) if grown > 0 else -math.inf


def lower(units: Tally, alpha: float) -> float:
    """Largest mean that the units exclude from below: the true one is above it with confidence
    1 - ``alpha``, at every look. 0 without units."""
    return _excluded(units, alpha, LOWER_BETS)


def upper(units: Tally, alpha: float) -> float:
    """The bound from above, by the same bet on disagreement."""
    flipped: Counter[float] = Counter()
    for x, n in units.items():
        flipped[1.0 - x] += n
    return 1.0 - _excluded(flipped, alpha, UPPER_BETS)


def _excluded(units: Tally, alpha: float, bets: Iterable[tuple[float, float]]) -> float:
    """The capital falls as the mean rises: bisection for where it is 1/alpha."""
    bets = tuple(bets)
    goal = -math.log(alpha)
    low, high = 0.0, 1.0
    if not units:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if log_capital(units, middle, bets) >= goal:
            low = middle
        else:
            high = middle
    return low


def best_possible(units: int, alpha: float) -> float:
    """The lower bound after ``units`` units that all agree: (alpha / 2)^(1 / units), or a little
    more, as the other bets win too."""
    return lower({1.0: units}, alpha) if units > 0 else 0.0


def units_for(target: float, alpha: float) -> int:
    """Fewest units, all agreeing, whose lower bound reaches ``target`` (below 1)."""
    guess = max(1, math.ceil(math.log(2 / alpha) / -math.log(target)))
    while guess > 1 and best_possible(guess - 1, alpha) >= target:
        guess -= 1
    while best_possible(guess, alpha) < target:
        guess += 1
    return guess
