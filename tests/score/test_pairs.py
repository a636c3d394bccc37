"""Pair counts over distinct outputs equal a loop over all pairs of runs."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detdiag.score.pairs import (
    DRAWN_PAIRS,
    agreement,
    all_equal,
    cell_of,
    cross,
    inside,
    mixed,
    weighted_pairs,
)

RUNS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("123456")), max_size=14)


def _pairs(runs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Every pair of runs from different bursts."""
    return [(a, b) for (a, i), (b, j) in combinations(runs, 2) if i != j]


@settings(deadline=None, max_examples=60)
@given(RUNS)
def test_agreement_is_the_share_of_equal_pairs_of_different_bursts(
    runs: list[tuple[str, str]],
) -> None:
    pairs = _pairs(runs)
    expected = None if not pairs else sum(a == b for a, b in pairs) / len(pairs)
    assert agreement(cell_of(runs)) == pytest.approx(expected) if pairs else True
    assert (agreement(cell_of(runs)) is None) == (expected is None)


@settings(deadline=None, max_examples=60)
@given(RUNS)
def test_inside_counts_the_other_pairs(runs: list[tuple[str, str]]) -> None:
    pairs = [(a, b) for (a, i), (b, j) in combinations(runs, 2) if i == j]
    found = inside(cell_of(runs))
    assert (found is None) == (not pairs)
    if pairs:
        assert found == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from("abcd"), min_size=2, max_size=30))
def test_without_bursts_it_is_the_published_formula(outputs: list[str]) -> None:
    n = len(outputs)
    counts = [outputs.count(k) for k in set(outputs)]
    formula = sum(c * (c - 1) for c in counts) / (n * (n - 1))
    assert agreement(cell_of((o, str(i)) for i, o in enumerate(outputs))) == pytest.approx(formula)


def test_agreement_has_no_bias_at_any_number_of_runs() -> None:
    """Over every sequence of N draws, weighted by its chance, the mean is sum q^2."""
    from itertools import product

    q = {"a": 0.7, "b": 0.2, "c": 0.1}
    for n in (2, 3, 4):
        mean = 0.0
        for drawn in product(q, repeat=n):
            chance = 1.0
            for output in drawn:
                chance *= q[output]
            mean += chance * (agreement(cell_of((o, str(i)) for i, o in enumerate(drawn))) or 0.0)
        assert mean == pytest.approx(0.49 + 0.04 + 0.01)


@settings(deadline=None, max_examples=60)
@given(RUNS, RUNS)
def test_mixing_conditions_weighs_them_equally(
    left: list[tuple[str, str]], right: list[tuple[str, str]]
) -> None:
    """Brute force: draw two runs, each under a condition of equal chance."""
    right = [(o, f"r{b}") for o, b in right]
    parts = [_pairs(left), _pairs(right), [(a, b) for a, _ in left for b, _ in right]]
    shares = [sum(a == b for a, b in p) / len(p) if p else None for p in parts]
    found = mixed([cell_of(left), cell_of(right)])
    if any(s is None for s in shares):
        assert found is None
        assert weighted_pairs([cell_of(left), cell_of(right)]) == []
        return
    expected = (shares[0] + shares[1] + 2 * shares[2]) / 4  # type: ignore[operator]
    assert found == pytest.approx(expected)


@settings(deadline=None, max_examples=60)
@given(RUNS, RUNS)
def test_the_weights_of_the_pairs_sum_to_one_and_give_the_same_agreement(
    left: list[tuple[str, str]], right: list[tuple[str, str]]
) -> None:
    cells = [cell_of(left), cell_of((o, f"r{b}") for o, b in right)]
    for some in (cells, cells[:1]):
        pairs = weighted_pairs(some)
        if not pairs:
            continue
        assert sum(w for _, _, w in pairs) == pytest.approx(1.0)
        equal = sum(w for a, b, w in pairs if a == b)
        assert equal == pytest.approx(mixed(some) if len(some) == 2 else agreement(some[0]))


def test_cross_counts_every_pair_of_two_cells() -> None:
    a, b = cell_of([("x", "1"), ("x", "2"), ("y", "3")]), cell_of([("x", "4"), ("z", "5")])
    assert cross(a, b) == pytest.approx(2 / 6)
    assert cross(a, cell_of([])) is None


def test_many_distinct_outputs_are_drawn_not_enumerated() -> None:
    """300 outputs, 100 of them equal: drawn pairs agree with the exact share within noise."""
    runs = [("same" if i < 100 else f"o{i}", str(i)) for i in range(300)]
    cell = cell_of(runs)
    pairs = weighted_pairs([cell])
    assert len(pairs) <= DRAWN_PAIRS
    assert sum(w for a, b, w in pairs if a == b) == pytest.approx(agreement(cell), abs=0.03)


def test_total_agreement_by_hand() -> None:
    """Atil et al.: a question counts if all its N runs are equal. Three questions of 4 runs."""
    questions = ["aaaa", "aaab", "abcd"]
    cells = [cell_of((o, str(i)) for i, o in enumerate(q)) for q in questions]
    assert [all_equal(c.counts, 4) for c in cells] == [1.0, 0.0, 0.0]
    # At N = 2 every choice of two of the four runs: 6 of 6, 3 of 6 (pairs among aaa), 0 of 6.
    assert [all_equal(c.counts, 2) for c in cells] == [1.0, 0.5, 0.0]
    assert all_equal(cells[0].counts, 5) is None
