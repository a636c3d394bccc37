"""A server that never repeats itself against its baseline: the means of two sessions."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import permutation_test

from detdiag.evidence.case import Case
from detdiag.evidence.observation import Candidate, Observation, Output, Position
from detdiag.verdict import decide
from detdiag.verdict.endpoint.samples import read_samples
from detdiag.verdict.endpoint.session_shift import ENOUGH, session_shift

Row = Mapping[str, float]


def replies(rows: Sequence[Row], session: str) -> list[Observation]:
    out = []
    for i, row in enumerate(rows):
        best = max(row, key=lambda t: row[t])
        top = tuple(Candidate(t, None, v) for t, v in sorted(row.items(), key=lambda kv: -kv[1]))
        out.append(
            Observation(
                f"{session}{i}", "q", request={"messages": [], "temperature": 0},
                output=Output(text=best, positions=(Position(best, None, row[best], top),)),
                factors={"concurrency": 1, "connection": f"c{i % 4}", "session": session,
                         "time": float(i + 1000 * (session == "now"))},
                response={"context": {"arm": "idle", "unit": f"{session}{i // 4}"}},
            )
        )  # fmt: skip
    return out


def jitter(n: int, seed: int, shift: float = 0.0, noise: float = 0.02) -> list[Row]:
    draw = random.Random(seed)
    means = {"a": -0.3, "b": -1.8, "c": -3.0, "d": -4.0}
    return [{t: m + draw.gauss(0, noise) + shift * (t != "a") for t, m in means.items()}
            for _ in range(n)]  # fmt: skip


def shift_of(before: Sequence[Row], now: Sequence[Row]) -> Any:
    return session_shift(read_samples([*replies(before, "baseline"), *replies(now, "now")]))


def verdict_of(before: Sequence[Row], now: Sequence[Row]) -> dict[str, Any]:
    case = Case(
        (*replies(before, "baseline"), *replies(now, "now")),
        target={"kind": "endpoint"},
        factor_layers={"connection": "version", "session": "version"},
    )
    return decide(case).to_dict()


def matrix(rows: Sequence[Row]) -> np.ndarray:
    return np.array([[row[t] for t in "abcd"] for row in rows])


def test_the_statistic_is_the_mean_over_tokens_of_the_difference_of_means() -> None:
    before, now = jitter(20, 1), jitter(24, 2, 0.05)
    found = shift_of(before, now)
    gaps = np.abs(matrix(before).mean(0) - matrix(now).mean(0))
    assert found.mean_nat == pytest.approx(gaps.mean())
    assert found.largest_nat == pytest.approx(gaps.max())
    assert (found.before, found.now) == (20, 24)


@pytest.mark.parametrize("shift", [0.0, 0.006])
def test_p_agrees_with_scipy(shift: float) -> None:
    before, now = jitter(18, 3), jitter(18, 4, shift)

    def statistic(x: np.ndarray, y: np.ndarray, axis: int = 0) -> Any:
        return np.abs(x.mean(axis=axis) - y.mean(axis=axis)).mean()

    whole = np.vstack([matrix(before), matrix(now)])
    index = np.arange(36.0)

    def by_index(x: np.ndarray, y: np.ndarray) -> Any:
        return statistic(whole[x.astype(int)], whole[y.astype(int)])

    theirs = permutation_test(
        (index[:18], index[18:]), by_index, permutation_type="independent",
        alternative="greater", n_resamples=4999, rng=np.random.default_rng(7),
    ).pvalue  # fmt: skip
    assert shift_of(before, now).p == pytest.approx(theirs, abs=0.03)


def test_a_token_that_is_not_listed_has_the_lowest_value_listed_and_sentinels_are_none() -> None:
    full = {"a": -0.3, "b": -1.8, "c": -3.0}
    cut = {"a": -0.3, "b": -1.8, "z": -9999.0}
    found = shift_of([full] * ENOUGH, [cut] * ENOUGH)
    assert found.largest_nat == pytest.approx(3.0 - 1.8)


def test_few_replies_say_nothing() -> None:
    assert shift_of(jitter(ENOUGH - 1, 1), jitter(30, 2, 1.0)) is None


def test_a_shift_far_above_rounding_is_version() -> None:
    verdict = verdict_of(jitter(24, 1), jitter(24, 2, 0.8))["verdict"]
    assert (verdict["layer"], verdict["rule"]) == ("version", "version.drift")
    assert verdict["confidence"] == "suspected"


def test_a_shift_of_the_size_of_rounding_is_told_and_blames_nothing() -> None:
    report = verdict_of(jitter(24, 1), jitter(24, 2, 0.05))
    assert report["verdict"]["status"] == "inconclusive"
    version = next(layer for layer in report["layers"] if layer["layer"] == "version")
    told = [f for f in version["findings"] if f["rule"] == "version.drift"]
    assert [f["outcome"] for f in told] == ["inconclusive"]
    assert "provisional" in told[0]["summary"]


def test_no_shift_gives_no_alarm() -> None:
    alarms = [shift_of(jitter(20, s), jitter(20, 500 + s)).p <= 0.001 for s in range(25)]
    assert sum(alarms) == 0
