"""Statistics against scipy, closed forms and brute force."""

from __future__ import annotations

import itertools
import math

import pytest
from scipy import stats as reference

from detdiag.verdict.stats import (
    _cross_pairs_differ,
    fisher_greater,
    holm,
    permutation_p,
    runs_for_bound,
    wilson,
    zero_bound,
)


@pytest.mark.parametrize(("k", "n"), [(1, 10), (5, 8), (19, 20), (3, 400)])
def test_wilson_is_scipys(k: int, n: int) -> None:
    expected = reference.binomtest(k, n).proportion_ci(0.95, method="wilson")
    assert wilson(k, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("n", [1, 7, 20, 60])
def test_ends_are_clopper_pearson(n: int) -> None:
    none = reference.binomtest(0, n).proportion_ci(0.95, method="exact")
    every = reference.binomtest(n, n).proportion_ci(0.95, method="exact")
    assert wilson(0, n) == pytest.approx((none.low, none.high))
    assert wilson(n, n) == pytest.approx((every.low, every.high))


def test_bounds_are_those_of_the_binomial() -> None:
    for n in (5, 10, 20, 100, 598):
        assert (1 - zero_bound(n)) ** n == pytest.approx(0.05)
    assert [round(100 * zero_bound(n)) for n in (5, 10, 20)] == [45, 26, 14]
    assert [runs_for_bound(p) for p in (0.1, 0.05, 0.01)] == [29, 59, 299]


def test_fisher_is_scipys() -> None:
    for a, b, c, d in itertools.product((0, 1, 4), (1, 3, 8), (0, 2), (2, 5, 9)):
        table = [[a, b], [c, d]]
        expected = reference.fisher_exact(table, alternative="greater").pvalue
        assert fisher_greater(a, a + b, c, c + d) == pytest.approx(expected)


def test_holm_steps_down() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_cross_pairs_by_brute_force() -> None:
    classes, arms = [0, 0, 1, 2, 1, 0], [0, 1, 1, 0, 2, 2]
    pairs = itertools.combinations(range(6), 2)
    expected = sum(classes[i] != classes[j] and arms[i] != arms[j] for i, j in pairs)
    assert _cross_pairs_differ(classes, arms) == expected


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_perfect_separation_has_the_textbook_p(n: int) -> None:
    p = permutation_p([([0] * n + [1] * n, [0] * n + [1] * n)])
    assert p == pytest.approx(2 / math.comb(2 * n, n))


def test_strata_multiply() -> None:
    one = ([0, 0, 1, 1], [0, 0, 1, 1])
    assert permutation_p([one, one, one]) == pytest.approx((1 / 3) ** 3)


def test_sampled_p_is_near_the_exact_one() -> None:
    classes, arms = [0] * 6 + [1] * 6 + [1], [0] * 6 + [1] * 6 + [2]
    p = permutation_p([(classes, arms)], draws=4999)
    assert p < 0.01
    assert p == permutation_p([(classes, arms)], draws=4999)


def test_nothing_to_permute_is_no_evidence() -> None:
    assert permutation_p([]) == 1.0
    assert permutation_p([([0, 0, 0], [0, 1, 2])]) == 1.0
