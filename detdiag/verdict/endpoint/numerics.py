"""What log-probabilities tell about the arithmetic: lattice step, output type, rounding, ties."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from detdiag.evidence.observation import Observation, Position

STEPS: Final = tuple(2.0**-e for e in range(1, 14))
"""Candidate lattice steps in nats, coarsest first."""
FIT_NAT: Final = 3e-6
"""How far a difference may lie off the lattice: fp32 log-softmax rounding."""
ENOUGH_POSITIONS: Final = 20
FEW_DIGITS: Final = 5
GUESSED_TIE_NAT: Final = 0.05


@dataclass(frozen=True, slots=True)
class Numerics:
    """``dtype``: ``bfloat16``, ``float16``, ``no lattice``, ``rounded`` or ``unknown`` (too few
    positions). ``score`` is the share of positions on a lattice, ``steps`` how often each step."""

    dtype: str
    positions: int
    score: float | None
    steps: tuple[tuple[float, int], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype,
            "positions": self.positions,
            "score": self.score,
            "steps": [[s, n] for s, n in self.steps],
        }


def values_of(position: Position) -> list[float]:
    """Usable alternatives of one position, best first."""
    return sorted((c.logprob for c in position.top if c.logprob > -9990.0), reverse=True)


def lattice_step(values: Sequence[float], temperature: float = 1.0) -> float | None:
    """The coarsest step on which all pairwise differences lie; None without at least 4 values."""
    scaled = [v * temperature for v in values]
    if len(scaled) < 4 or scaled[0] == scaled[-1]:
        return None
    gaps = [abs(a - b) for a, b in combinations(scaled, 2)]
    for step in STEPS:
        if all(abs(g - step * round(g / step)) <= FIT_NAT for g in gaps):
            return step
    return None


def significant_digits(value: float) -> int:
    """Decimal digits that the shortest spelling of ``value`` needs."""
    digits = f"{value!r}".split("e")[0].replace("-", "").replace(".", "").strip("0")
    return max(1, len(digits))


def _is_short(value: float) -> bool:
    """Cut to few digits or to few decimals: no spelling of an fp32 log-softmax."""
    whole, _, decimals = f"{value!r}".partition(".")
    few_decimals = len(decimals) <= FEW_DIGITS and "e" not in f"{whole}{decimals}"
    return few_decimals or significant_digits(value) <= FEW_DIGITS


def fingerprint(observations: Iterable[Observation], temperature: float = 1.0) -> Numerics:
    """Lattice statistics over distinct positions of all replies."""
    seen: set[tuple[float, ...]] = set()
    for one in observations:
        for position in one.output.positions or ():
            values = tuple(values_of(position))
            if len(values) >= 4:
                seen.add(values)
    if not seen:
        return Numerics("unknown", 0, None)
    finite = [v for values in seen for v in values if math.isfinite(v) and v != 0.0]
    if finite and all(_is_short(v) for v in finite):
        return Numerics("rounded", len(seen), None)
    found = [lattice_step(v, temperature) for v in seen]
    steps = Counter(s for s in found if s is not None)
    score = sum(steps.values()) / len(found)
    return Numerics(
        _dtype(steps, score, len(found)), len(found), score, tuple(sorted(steps.items()))
    )


def _dtype(steps: Counter[float], score: float, n: int) -> str:
    if n < ENOUGH_POSITIONS:
        return "unknown"
    if score < 0.8:
        return "no lattice"
    coarse = sum(c for s, c in steps.items() if s >= 1 / 32)
    return "bfloat16" if coarse >= 0.5 * steps.total() else "float16"


def near_tie_nat(position: Position) -> float:
    """Gap (nats) up to which one ULP on each of two logits can swap them: two lattice steps, or
    a guess where there is no lattice."""
    step = lattice_step(values_of(position))
    return GUESSED_TIE_NAT if step is None else 2 * step


def margin_nat(position: Position) -> float | None:
    """Best minus second-best alternative; None with fewer than two."""
    values = values_of(position)
    return values[0] - values[1] if len(values) > 1 else None
