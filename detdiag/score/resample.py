"""Intervals and tests over prompts: the prompt is the unit, never the response."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

DRAWS: Final = 4000
EXACT_PROMPTS: Final = 14
"""Prompts up to which all sign flips are enumerated."""


def bootstrap_mean(values: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """95 % percentile interval of the mean over prompts; None below two prompts."""
    return bootstrap_ratio(values, [1.0] * len(values), seed)


def bootstrap_ratio(
    tops: Sequence[float], bottoms: Sequence[float], seed: int = 0
) -> tuple[float, float] | None:
    """The same for a ratio of sums (forks over tokens); None below two prompts."""
    if len(tops) < 2:
        return None
    import numpy as np

    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(tops), size=(DRAWS, len(tops)))
    top = np.asarray(tops)[picks].sum(axis=1)
    bottom = np.asarray(bottoms)[picks].sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(bottom > 0, top / bottom, 0.0)
    low, high = np.quantile(ratio, [0.025, 0.975])
    return float(low), float(high)


def sign_flip(differences: Sequence[float], seed: int = 0) -> tuple[float, bool] | None:
    """Two-sided p that the mean difference is zero, by flipping signs, and whether it is exact.

    None below two prompts with a difference: no test over prompts is possible.
    """
    moved = [d for d in differences if d != 0.0]
    if len(differences) < 2 or not moved:
        return None
    observed = abs(sum(moved)) - 1e-12
    if len(moved) <= EXACT_PROMPTS:
        flips = list(product((1, -1), repeat=len(moved)))
        hits = sum(
            abs(sum(s * d for s, d in zip(signs, moved, strict=True))) >= observed
            for signs in flips
        )
        return hits / len(flips), True
    import numpy as np

    signs = np.random.default_rng(seed).choice((-1, 1), size=(DRAWS, len(moved)))
    hits = int((np.abs(signs @ np.asarray(moved)) >= observed).sum())
    return (hits + 1) / (DRAWS + 1), False


def clopper_pearson_lower(k: int, n: int, confidence: float = 0.95) -> float:
    """Exact one-sided lower bound on a share after k of n (Biometrika 26, 1934)."""
    if k == 0:
        return 0.0
    from scipy.special import betaincinv  # type: ignore[import-untyped, unused-ignore]

    return float(betaincinv(k, n - k + 1, 1.0 - confidence))
