from __future__ import annotations

import pytest

from detdiag.report.numbers import interval, k_of_n, number, percent, rounded, share, wilson


@pytest.mark.parametrize(("k", "n"), [(0, 20), (20, 20), (7, 20), (1, 3), (59, 600)])
def test_wilson_against_scipy(k: int, n: int) -> None:
    from scipy.stats import binomtest

    theirs = binomtest(k, n).proportion_ci(method="wilson")
    assert wilson(k, n) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_intervals_read_as_percent() -> None:
    assert interval([0.0, 0.1611]) == "0–16 %"
    assert interval([0.8389, 1.0]) == "84–100 %"
    assert interval([0.0, 0.0077]) == "0–0.77 %"
    assert interval([0.7639, 0.9911]) == "76–99.1 %"
    assert interval(None) == interval([0.1]) == interval(["NaN", 1]) == ""
    assert percent(0.9999) == "100"


def test_counts_and_numbers() -> None:
    assert k_of_n({"k": 3, "n": 20}) == "3/20"
    assert k_of_n({"k": None, "n": 20}) == "–"
    assert share({"k": 5, "n": 20}) == 0.25
    assert share({"k": 5, "n": 0}) is None
    assert number(0.123456) == "0.123"
    assert number(3.0) == "3"
    assert number(float("nan")) == "NaN"
    assert rounded(0.123456) == 0.1235
    assert rounded("NaN") is None
