"""The score object: published figures by hand, gate, limits, intervals, ugly input."""

from __future__ import annotations

from typing import Any

import pytest

from detdiag.score.answers import last_number_in
from detdiag.score.gate import Question
from detdiag.score.sample import sample_of
from detdiag.score.score import score
from detdiag.score.words import sentence, speaker, with_words
from tests.score.make import observed, solo


def _score(observations: list[Any], target: float | None = None, **options: Any) -> dict[str, Any]:
    return with_words(score(sample_of(observations), Question(target), **options))


def _figure(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(f for f in found["figures"] if f["name"] == name)


def test_tarr_and_tara_by_hand() -> None:
    """Five questions, four runs each. Raw: 2 of 5 questions have four equal outputs. Parsed: two
    more agree on the number. The fifth holds no number in two runs, so it does not agree."""
    found = _score(
        solo(
            {
                "q1": ["7"] * 4,
                "q2": ["it is 9."] * 4,
                "q3": ["it is 3.", "3", "so: 3", "3.0"],
                "q4": ["1,000", "1000", "1000", "1000"],
                "q5": ["5", "five", "5", "five"],
            }
        ),
        parser=last_number_in,
    )
    assert _figure(found, "TARr@4")["value"] == pytest.approx(2 / 5)
    assert (_figure(found, "TARr@4")["k"], _figure(found, "TARr@4")["n"]) == (2, 5)
    assert _figure(found, "TARa@4")["value"] == pytest.approx(4 / 5)
    # Wilson at 2 of 5, by its formula: (0.4 + z2/10 +- z sqrt(0.24/5 + z2/100)) / (1 + z2/5).
    assert _figure(found, "TARr@4")["ci95"] == pytest.approx([0.1176, 0.7693], abs=1e-4)
    assert any(limit["key"] == "limit.unparsed" and limit["n"] == 2 for limit in found["limits"])


def test_the_score_of_a_healthy_control_is_one_with_its_bound() -> None:
    found = _score(solo({"p": ["same"] * 200, "q": ["also"] * 200}), target=0.97)
    assert found["summary"]["agreement"] == 1.0
    assert found["summary"]["status"] == "reached"
    bound = found["summary"]["bound"]
    assert bound["units"] == 200 and bound["disagree"] == 0
    assert bound["lower"] == pytest.approx((0.05 / 2) ** (1 / 200), abs=2e-3)
    assert f"at least {int(bound['lower'] * 1e4) / 1e4:.4f}" in found["summary"]["sentence"]
    assert "deterministic" not in str(found).lower()


def test_a_target_out_of_reach_of_these_runs_is_undecided() -> None:
    found = _score(solo({"p": ["same"] * 20}), target=0.99)
    assert found["summary"]["status"] == "undecided"
    assert found["summary"]["sentence"].startswith("These runs do not decide")


def test_a_missed_target_is_missed() -> None:
    found = _score(solo({"p": ["a", "b"] * 100}), target=0.9)
    assert found["summary"]["status"] == "missed"
    assert "at most" in found["summary"]["sentence"]


def test_one_prompt_has_no_interval_over_prompts_and_says_so() -> None:
    found = _score(solo({"p": ["a", "a", "b", "a"]}))
    assert _figure(found, "pairwise agreement")["ci95"] is None
    assert any(limit["key"] == "limit.one_prompt" for limit in found["limits"])


def test_prompts_not_responses_are_resampled() -> None:
    """Two prompts at 1 and 0 with many runs: the interval is as wide as it can be, however many
    runs there are."""
    few = _score(solo({"p": ["a"] * 4, "q": ["a", "b", "c", "d"]}))
    many = _score(solo({"p": ["a"] * 90, "q": [str(i) for i in range(90)]}))
    for found in (few, many):
        assert _figure(found, "pairwise agreement")["value"] == pytest.approx(0.5)
        assert _figure(found, "pairwise agreement")["ci95"] == [0.0, 1.0]


def test_the_runs_for_a_tenth_of_the_flip_rate_are_enough_and_not_too_many() -> None:
    """They are tried: that many agreeing runs bound the flips by the tenth, one cycle less not."""
    found = _score(solo({"p": ["a"] * 38 + ["b", "b"]}))
    limit = next(x for x in found["limits"] if x["key"] == "limit.tenth_seen")
    flips = 1 - (38 * 37 + 2) / (40 * 39)
    assert limit["tenth"] == pytest.approx(flips / 10)
    enough = _score(solo({"p": ["a"] * limit["runs"]}))
    fewer = _score(solo({"p": ["a"] * (limit["runs"] - 2)}))
    assert 1 - enough["summary"]["bound"]["lower"] <= limit["tenth"]
    assert 1 - fewer["summary"]["bound"]["lower"] > limit["tenth"]


def test_conditions_that_repeat_but_differ_are_told() -> None:
    runs = [observed("p", "s", batch_size=1, repeat=i, row=0) for i in range(20)]
    runs += [observed("p", "b", batch_size=4, repeat=i, row=0) for i in range(20)]
    found = _score(runs)
    assert found["summary"]["agreement"] == pytest.approx(0.5)
    assert [c["figures"][0]["value"] for c in found["conditions"]] == [1.0, 1.0]
    assert found["between"][0]["value"] == 0.0
    assert found["prompts"][0]["by_condition"] == {"solo": 1.0, "batch of 4": 1.0}


def test_a_response_cache_is_no_score() -> None:
    """Replies with a header that names a hit, or with the id and time of an earlier one."""
    named = [
        observed("p", "a", concurrency=1, sent_s=i, response={"context": {"response_cache": i > 0}})
        for i in range(50)
    ]
    body = {"id": "chatcmpl-1", "created": 1700000000}
    same_id = [observed("p", "a", concurrency=1, sent_s=3.0 * i, response=body) for i in range(50)]
    for runs in (named, same_id):
        found = _score(runs, target=0.5)
        assert found["summary"]["status"] == "undecided"
        assert sum(found["cache"].values()) == 49
        assert "response cache" in found["summary"]["sentence"]
        assert found["summary"]["agreement"] is None


def test_choices_of_one_reply_are_one_burst_and_no_cache() -> None:
    """n = 4 in one request: four outputs, one call."""
    body = {"id": "chatcmpl-1", "created": 1700000000}
    found = _score([observed("p", "a", sent_s=1.0, response=body) for _ in range(4)])
    assert found["cache"] == {}
    assert found["summary"]["agreement"] is None
    assert found["conditions"][0]["inside_burst"]["value"] == 1.0


def test_other_ids_are_no_cache() -> None:
    runs = [
        observed("p", "a", sent_s=float(i), response={"id": f"c{i}", "created": 1})
        for i in range(6)
    ]
    assert _score(runs)["summary"]["agreement"] == 1.0


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [observed("p", "one run")],
        [observed("p", None)],
        [observed("p", "", batch_size=1)] * 1,
    ],
)
def test_too_little_is_said_not_scored(runs: list[Any]) -> None:
    found = _score(runs, target=0.5)
    assert found["summary"]["status"] == "undecided"
    assert found["summary"]["sentence"].startswith("Nothing to score")


def test_what_cannot_be_used_is_counted() -> None:
    runs = [
        observed("p", "a"),
        observed("p", "a"),
        observed("p", None),
        observed("p", None, tokens=[1]),
        observed("p", "x", role="intervention"),
    ]
    found = _score(runs)
    assert found["prompts"][0]["runs"] == 2
    assert found["left_out"] == {
        "neither text nor token ids": 1,
        "no text, which the other runs have": 1,
        "made with something switched on purpose": 1,
    }


def test_token_ids_alone_are_enough() -> None:
    found = _score([observed("p", None, tokens=[1, 2, i % 2]) for i in range(8)])
    assert found["summary"]["agreement"] == pytest.approx(24 / 56)
    assert found["prompts"][0]["first_fork"] == 2
    assert found["prompts"][0]["edit"] is None


def test_a_modal_share_over_shared_bursts_has_no_interval() -> None:
    """Responses of one burst are not independent."""
    rows = [observed("p", "a", batch_size=2, repeat=i // 2, row=i % 2) for i in range(20)]
    assert _score(rows)["prompts"][0]["modal"] == {"k": 20, "n": 20, "ci95": None, "lower95": None}
    alone = _score(solo({"p": ["a"] * 20}))["prompts"][0]["modal"]
    assert alone["ci95"] is not None
    assert alone["lower95"] == pytest.approx(0.05 ** (1 / 20))


def test_sentences_exist_in_both_languages_for_every_status() -> None:
    for runs, target in (
        (solo({"p": ["a"] * 200}), 0.5),
        (solo({"p": ["a", "b"] * 50}), 0.9),
        (solo({"p": ["a"] * 4}), 0.9),
        (solo({"p": ["a"] * 4}), None),
        ([], None),
    ):
        found = _score(runs, target)
        assert sentence(found, speaker("zh")) != sentence(found, speaker("en"))


def test_an_id_that_comes_twice_by_chance_is_no_cache() -> None:
    """A server that draws ids from a thousand: two of a burst collide within one second."""
    body = {"id": "chatcmpl-7", "created": 1700000000}
    chance = [
        observed("p", "a", sent_s=1.0, response=body),
        observed("p", "a", sent_s=1.4, response=body),
    ]
    others = [
        observed("p", "a", sent_s=float(i), response={"id": f"c{i}", "created": i})
        for i in range(9)
    ]
    assert _score([*chance, *others])["cache"] == {}
    again = observed("p", "a", sent_s=9.0, response=body)
    assert sum(_score([*chance, *others, again])["cache"].values()) == 1
