"""Tests whose unit is what was randomised: a burst, a salt, a connection; never one reply."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import comb
from typing import Final

from detdiag.verdict.endpoint.samples import Sample, by_group
from detdiag.verdict.stats import permutation_p

DRAWS: Final = 4999
EXACT: Final = 4000
"""Relabellings up to which all are counted instead of drawn."""


def association_p(samples: Iterable[Sample], label: Callable[[Sample], str | None]) -> float:
    """P that outcomes sort by ``label`` as seen if labels are shuffled inside each group."""
    strata = []
    for members in by_group(samples).values():
        known = [(s.outcome, label(s)) for s in members]
        names = sorted({n for _, n in known if n is not None})
        rows = [(o, names.index(n)) for o, n in known if n is not None]
        strata.append(([o for o, _ in rows], [n for _, n in rows]))
    return permutation_p(strata)


def constant_inside(samples: Iterable[Sample], label: Callable[[Sample], str | None]) -> bool:
    """Does each value of ``label`` always give one outcome per group (some of them repeated)?"""
    cells: dict[tuple[str, str | None], list[int]] = defaultdict(list)
    for one in samples:
        cells[one.group, label(one)].append(one.outcome)
    repeated = any(len(c) > 1 for c in cells.values())
    return repeated and all(len(set(c)) == 1 for c in cells.values())


Unit = tuple[str, Counter[tuple[str, int]]]
"""(arm, how often each outcome of each group came) of one burst or block."""


def units(samples: Iterable[Sample]) -> list[Unit]:
    found: dict[str, Unit] = {}
    for one in samples:
        unit = found.setdefault(f"{one.arm} {one.unit}", (one.arm, Counter()))
        unit[1][one.group, one.outcome] += 1
    return list(found.values())


def unit_permutation_p(samples: Sequence[Sample], arm: str, *, seed: int = 0) -> float:
    """P that whole units, relabelled, part the outcomes of ``arm`` from the rest as well as seen.

    The statistic is Pearson's, outcome by arm, summed over groups (units may differ in size).
    Exact up to :data:`EXACT` relabellings, else :data:`DRAWS` seeded ones with the add-one rule.
    """
    import numpy as np

    members = units(samples)
    chosen = [i for i, (name, _) in enumerate(members) if name == arm]
    if not chosen or len(chosen) == len(members):
        return 1.0
    columns = sorted({key for _, counts in members for key in counts})
    table = np.array([[counts[key] for key in columns] for _, counts in members], dtype=float)
    groups = sorted({group for group, _ in columns})
    belongs = np.array([[group == g for g in groups] for group, _ in columns], dtype=float)
    total = table.sum(axis=0)
    whole = total @ belongs

    def statistic(inside: np.ndarray) -> float:
        mine = table[inside].sum(axis=0)
        share = np.divide(mine @ belongs, whole)
        expected = total * (belongs @ share)
        rest = total - expected
        gap = (mine - expected) ** 2
        both = np.divide(1.0, expected, where=expected > 0, out=np.zeros_like(expected))
        both += np.divide(1.0, rest, where=rest > 0, out=np.zeros_like(rest))
        return float((gap * both).sum())

    observed = statistic(np.array(chosen))
    n, k = len(members), len(chosen)
    if comb(n, k) <= EXACT:
        every = [statistic(np.array(c)) for c in combinations(range(n), k)]
        return sum(v >= observed - 1e-9 for v in every) / len(every)
    rng = np.random.default_rng(seed)
    drawn = [statistic(rng.permutation(n)[:k]) for _ in range(DRAWS)]
    return (sum(v >= observed - 1e-9 for v in drawn) + 1) / (DRAWS + 1)


def new_outcomes(control: Iterable[Sample], treated: Iterable[Sample]) -> tuple[int, int, int]:
    """(replies of ``treated`` with an outcome that ``control`` never gave, their number, the
    number of control replies) over groups that both have."""
    seen: dict[str, set[int]] = defaultdict(set)
    size: Counter[str] = Counter()
    for one in control:
        seen[one.group].add(one.outcome)
        size[one.group] += 1
    mine = [s for s in treated if s.group in seen]
    fresh = sum(s.outcome not in seen[s.group] for s in mine)
    return fresh, len(mine), sum(size[g] for g in {s.group for s in mine})


def trend_p(doses: Sequence[float], hits: Sequence[bool]) -> float | None:
    """One-sided Cochran-Armitage p that hits grow with the dose (normal approximation); None
    where dose or outcome never varies."""
    from statistics import NormalDist

    n, k = len(doses), sum(hits)
    if n < 3 or k in (0, n) or len(set(doses)) < 2:
        return None
    mean = sum(doses) / n
    rate = k / n
    score = sum((d - mean) * (h - rate) for d, h in zip(doses, hits, strict=True))
    variance = rate * (1 - rate) * sum((d - mean) ** 2 for d in doses)
    return 1.0 - NormalDist().cdf(score / variance**0.5)
