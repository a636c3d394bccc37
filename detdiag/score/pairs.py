"""Pairs of runs, counted over distinct outputs: never a loop over all pairs of runs."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

MOST_DISTINCT: Final = 120
"""Distinct outputs up to which every pair of them is weighed; above it pairs are drawn."""
DRAWN_PAIRS: Final = 4000


@dataclass(frozen=True, slots=True)
class Cell:
    """Runs of one prompt under one condition: outputs counted, in all and by burst."""

    counts: Mapping[Hashable, int]
    bursts: tuple[Mapping[Hashable, int], ...]

    @property
    def runs(self) -> int:
        return sum(self.counts.values())


Pair = tuple[Hashable, Hashable, float]
"""Two outputs (equal for a pair that agrees) and the weight of that pair; weights sum to 1."""


def cell_of(runs: Iterable[tuple[Hashable, str]]) -> Cell:
    """A cell from (output, burst) of every run."""
    counts: Counter[Hashable] = Counter()
    bursts: dict[str, Counter[Hashable]] = defaultdict(Counter)
    for output, burst in runs:
        counts[output] += 1
        bursts[burst][output] += 1
    return Cell(counts, tuple(bursts.values()))


def pooled(cells: Sequence[Cell]) -> Counter[Hashable]:
    """Outputs of several cells counted together."""
    total: Counter[Hashable] = Counter()
    for cell in cells:
        total.update(cell.counts)
    return total


def agreement(cell: Cell) -> float | None:
    """Share of pairs of runs from different bursts with equal outputs.

    Where each burst holds one run this is A2 = sum n_k (n_k - 1) / (N (N - 1)), which estimates
    sum q_k^2 without bias for any N. None where no two bursts are there.
    """
    pairs = cell.runs**2 - sum(sum(b.values()) ** 2 for b in cell.bursts)
    if pairs <= 0:
        return None
    equal = _squares(cell.counts) - sum(_squares(b) for b in cell.bursts)
    return equal / pairs


def inside(cell: Cell) -> float | None:
    """Share of pairs inside one burst with equal outputs; None where no burst holds two runs."""
    sizes = [sum(b.values()) for b in cell.bursts]
    pairs = sum(n * (n - 1) for n in sizes)
    equal = sum(_squares(b) for b in cell.bursts) - sum(sizes)
    return equal / pairs if pairs else None


def _squares(counts: Mapping[Hashable, int]) -> int:
    return sum(n * n for n in counts.values())


def cross(a: Cell, b: Cell) -> float | None:
    """Share of pairs (one run of each cell) with equal outputs."""
    pairs = a.runs * b.runs
    return sum(n * b.counts.get(k, 0) for k, n in a.counts.items()) / pairs if pairs else None


def mixed(cells: Sequence[Cell]) -> float | None:
    """Agreement of two runs that each fall under any of the conditions with equal chance.

    With q the mean of the conditions' output distributions this estimates sum q_k^2, whatever
    the number of runs under each condition. None where any part of it cannot be had.
    """
    parts = [agreement(cell) for cell in cells]
    parts += [2 * v if (v := cross(a, b)) is not None else None for a, b in _twos(cells)]
    if not cells or any(part is None for part in parts):
        return None
    return sum(part for part in parts if part is not None) / len(cells) ** 2


def _twos(cells: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    return [(a, b) for i, a in enumerate(cells) for b in cells[i + 1 :]]


def all_equal(counts: Mapping[Hashable, int], n: int) -> float | None:
    """Chance that ``n`` of these runs, drawn without replacement, are all equal.

    At ``n`` = all runs it is 1 or 0: the agreement of one question in TAR@N (arXiv 2408.04667).
    """
    total = sum(counts.values())
    if n < 1 or total < n:
        return None
    return sum(comb(k, n) for k in counts.values()) / comb(total, n)


def weighted_pairs(cells: Sequence[Cell], seed: int = 0) -> list[Pair]:
    """Every kind of pair that :func:`mixed` counts, with its weight (or drawn pairs of them).

    Empty where a part cannot be had.
    """
    blocks: list[tuple[list[Pair], float]] = [(_within(cell, seed), 1.0) for cell in cells]
    blocks += [(_between(a, b, seed), 2.0) for a, b in _twos(cells)]
    if not blocks or not all(block for block, _ in blocks):
        return []
    weights: dict[tuple[Hashable, Hashable], float] = defaultdict(float)
    for block, share in blocks:
        for a, b, weight in block:
            weights[a, b] += weight * share / len(cells) ** 2
    return [(a, b, weight) for (a, b), weight in weights.items()]


def _within(cell: Cell, seed: int) -> list[Pair]:
    total = (cell.runs**2 - sum(sum(b.values()) ** 2 for b in cell.bursts)) / 2
    if total <= 0:
        return []
    outputs = list(cell.counts)
    if len(outputs) > MOST_DISTINCT:
        return _drawn_within(cell, seed)
    shared: Counter[tuple[Hashable, Hashable]] = Counter()
    for burst in cell.bursts:
        for a, n in burst.items():
            for b, m in burst.items():
                shared[a, b] += n * m
    out: list[Pair] = []
    for i, a in enumerate(outputs):
        same = (cell.counts[a] ** 2 - shared[a, a]) / 2
        if same:
            out.append((a, a, same / total))
        for b in outputs[i + 1 :]:
            weight = cell.counts[a] * cell.counts[b] - shared[a, b]
            if weight:
                out.append((a, b, weight / total))
    return out


def _between(one: Cell, other: Cell, seed: int) -> list[Pair]:
    total = one.runs * other.runs
    if len(one.counts) * len(other.counts) > MOST_DISTINCT**2 / 2:
        rng = random.Random(seed)
        left = rng.choices(list(one.counts), list(one.counts.values()), k=DRAWN_PAIRS)
        right = rng.choices(list(other.counts), list(other.counts.values()), k=DRAWN_PAIRS)
        return [(a, b, 1 / DRAWN_PAIRS) for a, b in zip(left, right, strict=True)]
    return [(a, b, n * m / total) for a, n in one.counts.items() for b, m in other.counts.items()]


def _drawn_within(cell: Cell, seed: int) -> list[Pair]:
    """Pairs of runs of different bursts, drawn uniformly."""
    rng = random.Random(seed)
    runs = [
        (k, i) for i, burst in enumerate(cell.bursts) for k, n in burst.items() for _ in range(n)
    ]
    out: list[Pair] = []
    while len(out) < DRAWN_PAIRS:
        (a, i), (b, j) = rng.choice(runs), rng.choice(runs)
        if i != j:
            out.append((a, b, 1 / DRAWN_PAIRS))
    return out
