"""Two scores side by side: the paired test by brute force, and what it cannot say."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detdiag.score.compare import compare
from detdiag.score.findings import compare_lines
from detdiag.score.gate import Question
from detdiag.score.resample import bootstrap_mean, clopper_pearson_lower, sign_flip
from detdiag.score.sample import sample_of
from detdiag.score.score import score
from detdiag.score.words import speaker
from tests.score.make import solo


def _score(outputs: dict[str, list[str]]) -> dict[str, Any]:
    return score(sample_of(solo(outputs)), Question())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-3, 3), min_size=2, max_size=8))
def test_sign_flip_enumerates_every_sign(changes: list[int]) -> None:
    found = sign_flip([float(c) for c in changes])
    if not any(changes):
        assert found is None
        return
    flips = [
        abs(sum(s * c for s, c in zip(signs, changes, strict=True)))
        for signs in product((1, -1), repeat=len(changes))
    ]
    assert found is not None
    assert found == (pytest.approx(sum(f >= abs(sum(changes)) for f in flips) / len(flips)), True)


def test_many_prompts_are_drawn() -> None:
    p, exact = sign_flip([0.1] * 40) or (1.0, True)
    assert not exact and p < 0.001
    balanced, _ = sign_flip([0.1, -0.1] * 20) or (0.0, True)
    assert balanced > 0.9


def test_the_smallest_p_that_the_prompts_can_give() -> None:
    before = _score({f"p{i}": ["a", "b"] * 10 for i in range(4)})
    after = _score({f"p{i}": ["a"] * 20 for i in range(4)})
    found = compare(before, after)
    assert found["p"] == found["smallest_p"] == pytest.approx(1 / 8)
    assert (found["up"], found["down"], found["same"]) == (4, 0, 0)
    text = " ".join(compare_lines({**after, "compare": found}, speaker("en")))
    assert "0.125" in text


def test_one_prompt_is_compared_but_not_tested() -> None:
    found = compare(_score({"p": ["a", "b"] * 5}), _score({"p": ["a"] * 10}))
    assert found["why"] == "one" and found["p"] is None and found["ci95"] is None
    assert found["change"] == pytest.approx(1 - 4 / 9)


def test_equal_scores_and_no_common_prompt() -> None:
    same = _score({"p": ["a"] * 4, "q": ["b"] * 4})
    assert compare(same, same)["why"] == "same"
    none = compare(same, _score({"x": ["a"] * 4}))
    assert none["why"] == "none" and none["before"] is None
    lines = compare_lines({**same, "compare": none}, speaker("en"))
    assert lines == ["No prompt is in both records: nothing can be compared."]


def test_other_numbers_of_runs_are_told_and_tarr_is_not_set_side_by_side() -> None:
    before, after = (
        _score({"p": ["a"] * 4, "q": ["b"] * 4}),
        _score({"p": ["a"] * 9, "q": ["b"] * 9}),
    )
    found = compare(before, after)
    assert not any(f["name"].startswith("TARr") for f in found["figures"])
    text = " ".join(compare_lines({**after, "compare": found}, speaker("en")))
    assert "N differs (4 before, 9 now)" in text


def test_the_bootstrap_is_over_prompts() -> None:
    """Two prompts: the resampled means are 0, 1/2 and 1 with chances 1/4, 1/2, 1/4."""
    assert bootstrap_mean([0.0, 1.0]) == (0.0, 1.0)
    assert bootstrap_mean([1.0]) is None
    low, high = bootstrap_mean([0.5] * 10 + [0.7] * 10) or (0, 0)
    assert 0.54 < low < 0.58 and 0.62 < high < 0.66


def test_clopper_pearson_solves_the_binomial_tail() -> None:
    from scipy.stats import binom

    p = clopper_pearson_lower(7, 20)
    assert binom.sf(6, 20, p) == pytest.approx(0.05)
    assert clopper_pearson_lower(0, 5) == 0.0


def test_a_name_that_stands_for_other_tokens_is_told() -> None:
    from detdiag.evidence.observation import Observation
    from detdiag.score.compare import other_inputs

    def asked(*ids: int) -> Observation:
        return Observation("o", query="p", prompt_token_ids=ids)

    assert other_inputs([asked(1, 2)], [asked(1, 2), asked(3)]) == 0
    assert other_inputs([asked(1, 2)], [asked(3)]) == 1
    assert other_inputs([Observation("o", query="p")], [asked(3)]) == 0
