"""Each call enters one comparison, and a cycle weighs the conditions as the agreement does."""

from __future__ import annotations

import random

import pytest

from detdiag.score.sample import Run, Sample, sample_of
from detdiag.score.units import units_of
from tests.score.make import observed, run, solo


def _sample(runs: list[Run]) -> Sample:
    return Sample(tuple(runs))


def test_solo_runs_are_paired_one_after_the_other() -> None:
    found = units_of(sample_of(solo({"p": ["a", "a", "a", "b", "a"]})))
    assert found.values == (1.0, 0.0)
    assert not found.merged and found.disagree == 1


def test_prompts_without_shared_calls_count_for_themselves() -> None:
    found = units_of(sample_of(solo({"p": ["a"] * 4, "q": ["b", "c"] * 2})))
    assert found.values == (1.0, 0.0, 1.0, 0.0)
    assert found.prompts == 2


def test_no_call_is_used_twice() -> None:
    """Every run has an output of its own but one twin: at most one unit can agree."""
    runs = []
    for condition in ("solo", "batch"):
        runs += [run(f"{condition}{i}", f"{condition}{i}", condition=condition) for i in range(8)]
    runs[1] = run("solo0", "twin")
    assert sum(units_of(_sample(runs)).values) == 1.0
    assert len(units_of(_sample(runs)).values) == 8


def test_two_conditions_that_differ_agree_in_half_of_the_comparisons() -> None:
    """Inside 1 and 1, between 0 twice: the mean of a cycle is the mixed agreement, 1/2."""
    runs = [run("s", f"s{i}") for i in range(8)]
    runs += [run("b", f"b{i}", condition="batch of 2") for i in range(8)]
    assert units_of(_sample(runs)).values == (1.0, 0.0, 0.0, 1.0) * 2


def test_the_mean_of_the_units_is_the_mixed_agreement() -> None:
    """Over random runs: three conditions with known output shares."""
    rng = random.Random(5)
    shares = {"solo": (0.9, 0.1), "x": (0.5, 0.5), "y": (0.2, 0.8)}
    runs = [
        run(rng.choices("ab", weights)[0], f"{name}{i}", condition=name)
        for name, weights in shares.items()
        for i in range(6000)
    ]
    values = units_of(_sample(runs)).values
    mean_a = sum(w[0] for w in shares.values()) / 3
    assert sum(values) / len(values) == pytest.approx(mean_a**2 + (1 - mean_a) ** 2, abs=0.02)


def test_shared_calls_make_one_unit_of_all_prompts() -> None:
    """A batch in which one call goes wrong for both prompts is one disagreement, not two."""
    runs = []
    for call in range(8):
        bad = "x" if call == 0 else ""
        runs += [run(q + bad, f"call{call}", query=q, condition="batch of 2") for q in "pq"]
    found = units_of(_sample(runs))
    assert found.merged
    assert found.values == (0.0, 1.0, 1.0, 1.0)


def test_a_round_that_a_prompt_lacks_is_left_out_for_all() -> None:
    """Without that, one prompt's later bursts would meet another's earlier ones."""
    runs = [
        run(f"{call}", f"b{call}", query=query, condition="load", round=call)
        for call in range(6)
        for query in "pq"
        if (query, call) != ("q", 1)
    ]
    found = units_of(_sample(runs))
    assert len(found.values) == 2
    assert found.values == (0.0, 0.0)


def test_a_prompt_without_enough_runs_is_named() -> None:
    found = units_of(sample_of(solo({"p": ["a"] * 4, "q": ["b"]})))
    assert found.skipped == ("q",) and found.prompts == 1


def test_several_rows_of_one_burst_are_one_call() -> None:
    rows = [
        observed("p", text, batch_size=2, repeat=i, row=r)
        for i, texts in enumerate(["aa", "ab", "bb", "bb"])
        for r, text in enumerate(texts)
    ]
    assert units_of(sample_of(rows)).values == (0.5, 1.0)


def test_nothing_is_nothing() -> None:
    assert units_of(_sample([])).values == ()


def test_coverage_where_a_call_goes_wrong_for_every_prompt() -> None:
    """Three prompts share each of 60 calls; 3 % of calls go wrong for all of them, so the true
    agreement is 0.97^2 (wrong calls all differ). Counting each prompt's comparison on its own
    claims too much; counting calls does not."""
    from detdiag.score import bound

    rng, truth = random.Random(11), 0.97**2
    honest = naive = 0
    for trial in range(150):
        wrong = [rng.random() < 0.03 for _ in range(60)]
        runs = [
            run(f"{trial}-{call}" if bad else "usual", f"c{call}", query=q, condition="batch of 3")
            for call, bad in enumerate(wrong)
            for q in "pqr"
        ]
        values = units_of(_sample(runs)).values
        honest += bound.lower(bound.tally(values), 0.05) > truth
        naive += bound.lower(bound.tally(values * 3), 0.05) > truth
    assert honest <= 15  # 5 % of 150 is 7.5; more than 15 has a chance below 1 in 100
    assert naive > 15
