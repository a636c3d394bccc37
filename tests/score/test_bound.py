"""The bound covers whenever one stops, and equals the exact one where that is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from detdiag.score import bound

ALPHA = 0.05


@pytest.mark.parametrize("units", [1, 5, 50, 600])
def test_all_agreeing_units_give_the_exact_bound_at_half_the_error(units: int) -> None:
    """Clopper-Pearson at 0 of n has the closed form (error)^(1/n)."""
    exact = (ALPHA / 2) ** (1 / units)
    assert exact == pytest.approx(1 - beta.ppf(1 - ALPHA / 2, 1, units))
    found = bound.lower({1.0: units}, ALPHA)
    assert exact <= found < ALPHA ** (1 / units)


def test_the_capital_is_a_fair_bet_at_the_claimed_mean() -> None:
    """Summed over every outcome of three units of mean m, the expected capital is 1."""
    m = 0.3
    for bets in (bound.LOWER_BETS, bound.UPPER_BETS):
        expected = 0.0
        for k in range(4):
            chance = [1, 3, 3, 1][k] * m**k * (1 - m) ** (3 - k)
            expected += chance * np.exp(bound.log_capital({1.0: k, 0.0: 3 - k}, m, bets))
        assert expected == pytest.approx(1.0)


def test_the_starting_capital_is_one() -> None:
    assert sum(w for _, w in bound.LOWER_BETS) == pytest.approx(1.0)
    assert sum(w for _, w in bound.UPPER_BETS) == pytest.approx(1.0)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), max_size=40))
def test_the_bounds_enclose_the_mean_and_mirror_each_other(values: list[float]) -> None:
    units = bound.tally(values)
    low, high = bound.lower(units, ALPHA), bound.upper(units, ALPHA)
    assert 0.0 <= low <= high <= 1.0
    if values:
        assert low <= np.mean(values) + 1e-9 and high >= np.mean(values) - 1e-9


def _ever_wrong(rng: np.random.Generator, draw, mean: float, looks: int, step: int) -> tuple:
    """Whether the lower or the upper bound passes the true mean at any look."""
    values = np.round(draw(rng, looks * step), 6)
    low = high = False
    for look in range(1, looks + 1):
        units = bound.tally(values[: look * step].tolist())
        low |= np.log(1 / ALPHA) <= bound.log_capital(units, mean, bound.LOWER_BETS)
        flipped = {1.0 - x: n for x, n in units.items()}
        high |= np.log(1 / ALPHA) <= bound.log_capital(flipped, 1 - mean, bound.UPPER_BETS)
    return low, high


def _bernoulli(p: float):
    return lambda rng, n: (rng.random(n) < p).astype(float)


def _mixed_prompts(rng: np.random.Generator, n: int) -> np.ndarray:
    """Four prompts in turn, one of which agrees in 80 %, the others always: mean 0.95."""
    rate = np.tile([1.0, 1.0, 1.0, 0.8], n // 4 + 1)[:n]
    return (rng.random(n) < rate).astype(float)


def _fractions(rng: np.random.Generator, n: int) -> np.ndarray:
    """Units that are means over three prompts, all of one burst: 0, 1/3, 2/3 or 1, mean 0.8."""
    return rng.choice([0.0, 1 / 3, 2 / 3, 1.0], p=[0.1, 0.1, 0.1, 0.7], size=n)


CASES = {
    "rare flips": (_bernoulli(0.99), 0.99),
    "some flips": (_bernoulli(0.9), 0.9),
    "coin": (_bernoulli(0.5), 0.5),
    "seldom equal": (_bernoulli(0.1), 0.1),
    "prompts that differ": (_mixed_prompts, 0.95),
    "fractions": (_fractions, 0.8),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_coverage_under_optional_stopping(name: str) -> None:
    """Simulated: with a look after every 20 units, 25 looks, the bound is ever wrong in at most
    5 % of sequences on each side (of 250, more than 24 has a chance of 1 in 1000)."""
    draw, mean = CASES[name]
    rng = np.random.default_rng(7)
    wrong = np.array([_ever_wrong(rng, draw, mean, 25, 20) for _ in range(250)])
    assert wrong[:, 0].sum() <= 24
    assert wrong[:, 1].sum() <= 24


def test_looking_often_with_the_fixed_bound_would_lie() -> None:
    """The reason for the martingale: the exact one-look bound, looked at 100 times."""
    rng = np.random.default_rng(3)
    looks = np.arange(5, 501, 5)
    hits = np.cumsum(rng.random((200, 500)) < 0.9, axis=1)[:, looks - 1]
    low = beta.ppf(ALPHA, hits, looks - hits + 1)
    wrong = int((low > 0.9).any(axis=1).sum())
    assert wrong / 200 > 0.15


@pytest.mark.parametrize("target", [0.5, 0.9, 0.97, 0.99])
def test_units_for_is_the_first_number_that_reaches_the_target(target: float) -> None:
    need = bound.units_for(target, ALPHA)
    assert bound.lower({1.0: need}, ALPHA) >= target
    assert need == 1 or bound.lower({1.0: need - 1}, ALPHA) < target


def test_power_missed_targets_are_found() -> None:
    """True agreement 0.9 against a target of 0.99: 400 units decide in nearly every sequence."""
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(60):
        units = bound.tally((rng.random(400) < 0.9).astype(float).tolist())
        found += bound.upper(units, ALPHA) < 0.99
    assert found >= 58
