"""Counts with honest intervals: Wilson, Clopper-Pearson, Fisher, Holm and exact permutation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, Final

ALPHA: Final = 0.01
"""Family-wise error rate at which a contrast counts as shown (Holm over the family)."""
WEAK_ALPHA: Final = 0.05
"""Above ALPHA and up to here a contrast may be suspected, never more."""
Z95: Final = 1.959963984540054


def wilson(k: int, n: int) -> tuple[float, float] | None:
    """Two-sided 95 % Wilson score interval of k of n; exact (Clopper-Pearson) upper end at k = 0.

    Wilson, J. Am. Stat. Assoc. 22 (1927). None when n is 0.
    """
    if n <= 0:
        return None
    if k == 0:
        return 0.0, 1.0 - 0.025 ** (1.0 / n)
    if k == n:
        return 0.025 ** (1.0 / n), 1.0
    p = k / n
    z2 = Z95 * Z95
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def zero_bound(n: int, confidence: float = 0.95) -> float:
    """One-sided upper bound on a rate after 0 events in n trials: 1 - (1-c)^(1/n)."""
    return 1.0 - (1.0 - confidence) ** (1.0 / n) if n > 0 else 1.0


def runs_for_bound(rate: float, confidence: float = 0.95) -> int:
    """Clean runs needed before ``zero_bound`` falls to ``rate``: ln(1-c) / ln(1-rate)."""
    return math.ceil(math.log(1.0 - confidence) / math.log(1.0 - rate))


def fisher_greater(k_a: int, n_a: int, k_b: int, n_b: int) -> float:
    """One-sided Fisher exact p that arm A's rate exceeds arm B's (hypergeometric tail)."""
    total, hits = n_a + n_b, k_a + k_b
    denominator = math.comb(total, hits)
    top = min(n_a, hits)
    return (
        sum(math.comb(n_a, x) * math.comb(n_b, hits - x) for x in range(k_a, top + 1)) / denominator
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm step-down adjusted p-values, in the order given (Scand. J. Stat. 6, 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


Stratum = tuple[Sequence[int], Sequence[int]]
"""(outcome class, arm) per observation of one stratum, both as small integers."""


def _cross_pairs_differ(classes: Sequence[int], arms: Sequence[int]) -> int:
    """Pairs of observations in different arms with different outcome classes."""
    by_class = Counter(classes)
    by_arm = Counter(arms)
    by_both = Counter(zip(classes, arms, strict=True))
    n = len(classes)

    def same(counter: Counter[Any]) -> int:
        return sum(c * (c - 1) // 2 for c in counter.values())

    return n * (n - 1) // 2 - same(by_class) - same(by_arm) + same(by_both)


def permutation_p(strata: Iterable[Stratum], *, draws: int = 4999, seed: int = 0) -> float:
    """P(cross-arm differences at least as many as seen) when arms are relabelled in each stratum.

    Exact by convolution where every stratum has two arms and few splits; else ``draws`` seeded
    relabellings with the add-one estimate. 1.0 when nothing can be permuted.
    """
    usable = [(list(c), list(a)) for c, a in strata if len(set(c)) > 1 and len(set(a)) > 1]
    if not usable:
        return 1.0
    observed = sum(_cross_pairs_differ(c, a) for c, a in usable)
    exact = [_exact_distribution(c, a) for c, a in usable]
    if all(d is not None for d in exact):
        return _tail([d for d in exact if d is not None], observed)
    return _sampled_tail(usable, observed, draws, seed)


def _exact_distribution(classes: list[int], arms: list[int]) -> tuple[float, ...] | None:
    """P(statistic = index) over all splits, or None if there are too many.

    It depends only on the class sizes and the size of the first of two arms.
    """
    values = sorted(set(arms))
    if len(values) != 2 or math.comb(len(arms), arms.count(values[0])) > 3000:
        return None
    sizes = tuple(sorted(Counter(classes).values()))
    return _split_distribution(sizes, arms.count(values[0]))


@lru_cache(maxsize=4096)
def _split_distribution(sizes: tuple[int, ...], n_first: int) -> tuple[float, ...]:
    classes = [c for c, size in enumerate(sizes) for _ in range(size)]
    counts: Counter[int] = Counter()
    for chosen in combinations(range(len(classes)), n_first):
        split = [1] * len(classes)
        for index in chosen:
            split[index] = 0
        counts[_cross_pairs_differ(classes, split)] += 1
    total = counts.total()
    return tuple(counts[value] / total for value in range(max(counts) + 1))


def _tail(distributions: list[tuple[float, ...]], observed: int) -> float:
    """P(sum >= observed) of independent statistics, by convolution."""
    import numpy as np

    combined = np.ones(1)
    for distribution in distributions:
        combined = np.convolve(combined, distribution)
    return min(1.0, max(0.0, float(combined[observed:].sum())))


LARGE: Final = 2000
"""Observations from which on fewer relabellings are drawn."""
FEW_DRAWS: Final = 999


def _sampled_tail(
    strata: list[tuple[list[int], list[int]]], observed: int, draws: int, seed: int
) -> float:
    """Add-one estimate of the tail over seeded relabellings of the arms inside each stratum."""
    import numpy as np

    if sum(len(c) for c, _ in strata) > LARGE:
        draws = min(draws, FEW_DRAWS)
    rng = np.random.default_rng(seed)
    totals = np.zeros(draws, dtype=np.int64)
    for classes, arms in strata:
        fixed = _cross_pairs_differ(classes, arms) - _same_both(classes, arms)
        class_codes = np.unique(np.asarray(classes), return_inverse=True)[1]
        arm_codes = np.unique(np.asarray(arms), return_inverse=True)[1]
        n_arms = int(arm_codes.max()) + 1
        base = class_codes * n_arms
        for draw in range(draws):
            cells = np.bincount(base + rng.permutation(arm_codes))
            totals[draw] += fixed + int((cells * (cells - 1) // 2).sum())
    return float((np.count_nonzero(totals >= observed) + 1) / (draws + 1))


def _same_both(classes: Sequence[int], arms: Sequence[int]) -> int:
    """Pairs equal in class and arm: the only part of the statistic that relabelling changes."""
    counts = Counter(zip(classes, arms, strict=True))
    return sum(c * (c - 1) // 2 for c in counts.values())
