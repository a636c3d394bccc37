"""Which recorded condition goes with the answer: permutation tests inside each request.

The labels of a factor are shuffled among the records of one request, so requests that are asked
more often on one replica are no evidence. Nothing here proves a cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MIN_GROUPS: Final = 5
MIN_REPEATS: Final = 4
MAX_GROUPS: Final = 64
MAX_RECORDS: Final = 64
ALPHA: Final = 0.01
SHUFFLES: Final = 1999

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """Records of one request: answer codes and, for each factor, a label (-1: not recorded)."""

    answers: Array
    labels: dict[str, Array]
    ordered: frozenset[str]


@dataclass(frozen=True, slots=True)
class Test:
    """``p`` is None when fewer than ``MIN_GROUPS`` requests with ``MIN_REPEATS`` records have
    both another answer and another label in them."""

    factor: str
    groups: int
    records: int
    p: float | None


def permutation_test(
    samples: Sequence[Sample],
    factor: str,
    rng: np.random.Generator,
    *,
    given: str | None = None,
    shuffles: int = SHUFFLES,
) -> Test:
    """Test one factor over all requests; ``given`` names a factor that is held equal."""
    observed = 0.0
    shuffled = np.zeros(shuffles)
    groups = records = 0
    for sample in samples:
        for part in _strata(sample, factor, given):
            answers, labels = sample.answers[part], sample.labels[factor][part]
            if not _usable(answers, labels):
                continue
            groups += 1
            records += len(part)
            ordered = factor in sample.ordered
            observed += float(_statistic(answers, labels[None, :], ordered)[0])
            rows = rng.permuted(np.tile(labels, (shuffles, 1)), axis=1)
            shuffled += _statistic(answers, rows, ordered)
    if groups < MIN_GROUPS:
        return Test(factor, groups, records, None)
    as_extreme = int(np.count_nonzero(shuffled >= observed - 1e-9))
    return Test(factor, groups, records, (1 + as_extreme) / (1 + shuffles))


def _strata(sample: Sample, factor: str, given: str | None) -> list[Array]:
    known = np.flatnonzero(sample.labels[factor] >= 0)
    if given is None:
        return [known]
    other = sample.labels[given][known]
    return [known[other == value] for value in np.unique(other) if value >= 0]


def _usable(answers: Array, labels: Array) -> bool:
    return (
        len(answers) >= MIN_REPEATS and len(np.unique(answers)) > 1 and len(np.unique(labels)) > 1
    )


def _statistic(answers: Array, labels: Array, ordered: bool) -> Array:
    """G of answer x label for each row of ``labels``; between-answer spread of ranks for an
    ordered factor (time, overlap). Larger is more associated."""
    kinds, codes = np.unique(answers, return_inverse=True)
    onehot = (codes[:, None] == np.arange(len(kinds))).astype(np.float64)
    if ordered:
        sums = labels.astype(np.float64) @ onehot
        counts = onehot.sum(axis=0)
        return ((sums / counts - labels.mean(axis=1, keepdims=True)) ** 2 * counts).sum(axis=1)
    total = np.zeros(len(labels))
    for value in np.unique(labels):
        cells = (labels == value).astype(np.float64) @ onehot
        total += np.where(cells > 0, cells * np.log(np.maximum(cells, 1.0)), 0.0).sum(axis=1)
    return total


def midranks(values: Array) -> Array:
    """Ranks from 0 with ties at their mean: what an ordered label is compared by."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    return below[inverse] + (counts[inverse] - 1) / 2


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment over the tests that have a p-value."""
    tested = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    out: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, index) in enumerate(tested):
        highest = max(highest, min(1.0, p * (len(tested) - rank)))
        out[index] = highest
    return out


def purity(answers: Array, labels: Array) -> tuple[int, int]:
    """Records whose answer is the usual one of their label, and records with a label."""
    known = labels >= 0
    right = 0
    for value in np.unique(labels[known]):
        right += int(np.unique(answers[labels == value], return_counts=True)[1].max())
    return right, int(np.count_nonzero(known))
