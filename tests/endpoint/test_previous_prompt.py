"""A server that goes on from its last request: answers go with what was asked just before."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from detdiag.evidence.observation import Observation
from detdiag.probes.endpoint.cache import lever_for
from tests.endpoint.test_judging import burst, idle, reply, verdict_of


def calls(n: int, *, slow_s: float, texts: tuple[str, str] = ("a", "b")) -> list[Observation]:
    """Two prompts asked in shuffled order; a call after the other prompt answers ``texts[1]``."""
    draw, out, before = random.Random(4), [], None
    for number in range(n):
        query = draw.choice("pq")
        if before is not None:
            same = query == before
            wall = 1.0 if same else slow_s
            context = {"after": "same" if same else "another", "sent_s": 0.0, "end_s": wall}
            unit = f"i{number // 4}"
            out.append(reply(texts[not same], unit=unit, query=query, context=context))
        before = query
    return out


@pytest.mark.parametrize(
    ("slow_s", "rule"), [(4.0, "batch.prefix-reuse"), (1.0, "batch.state-carried")]
)
def test_answers_that_go_with_the_prompt_before(slow_s: float, rule: str) -> None:
    """No pool and no other tenant knows our order, so neither is in question."""
    found = verdict_of(calls(40, slow_s=slow_s))
    assert (found["status"], found["layer"], found["rule"]) == ("attributed", "batch", rule)
    assert found["confidence"] == "likely"


def test_a_pool_is_not_taken_for_what_was_asked_before() -> None:
    """Answers drawn whatever came before: abstain."""
    draw = random.Random(1)
    mixed = [
        reply(draw.choice("ab"), query=o.query, unit=o.response["context"]["unit"],
              context={"after": o.response["context"]["after"], "sent_s": 0.0, "end_s": 1.0})
        for o in calls(60, slow_s=1.0)
    ]  # fmt: skip
    found = verdict_of(mixed)
    assert found["status"] == "inconclusive"
    assert set(found["confounded"]) == {"replica", "other tenants' load"}


def test_one_odd_call_after_another_prompt_proves_nothing() -> None:
    """The fewest that p = 0.01 allows: one of 60 is 1/60."""
    rows = [o for o in calls(60, slow_s=4.0) if o.response["context"]["after"] == "same"]
    odd = reply("b", query="p", context={"after": "another", "sent_s": 0.0, "end_s": 4.0})
    assert verdict_of([*rows, odd])["status"] == "inconclusive"


def cold_starts(cold: str, n: int = 4) -> list[Any]:
    out = []
    for number in range(n):
        known = {"salt": f"s{number}", "lever": "another prompt before", "lever_known": True}
        known |= {"sent_s": 0.0, "end_s": 1.0}
        first = {**known, "after": "another", "end_s": 4.0}
        out.append(reply(cold, arm="cold", unit=f"s{number}", context=first))
        again = {**known, "after": "same"}
        out += [reply("a", arm="warm", unit=f"s{number}", context=again) for _ in range(4)]
    return out


def test_two_cold_starts_are_enough_beside_many_calls_after_the_same_prompt() -> None:
    """(1/5)^2 says nothing by itself; 2 of 2 against 0 of 28 is 1 in C(30, 2) = 435."""
    calm = [
        reply("a", unit=f"i{i // 4}", context={"after": "same", "sent_s": 0.0, "end_s": 1.0})
        for i in range(20)
    ]
    found = verdict_of([*calm, *cold_starts("b", 2)])
    assert (found["layer"], found["rule"]) == ("batch", "batch.prefix-reuse")
    assert found["confidence"] == "likely"
    assert verdict_of([*calm, *cold_starts("a", 2)])["layer"] is None


@pytest.mark.parametrize(
    ("in_bursts", "rules"),
    [("bbab", {"batch.prefix-reuse"}), ("bcab", {"batch.prefix-reuse", "batch.load-sensitive"})],
)
def test_bursts_that_only_empty_the_cache_are_no_load(in_bursts: str, rules: set[str]) -> None:
    rows: Sequence[Any] = [
        *idle(40), *cold_starts("b"), *(o for i in range(8) for o in burst(in_bursts, f"b{i}"))
    ]  # fmt: skip
    found = failed_rules(rows)
    assert found == rules


def failed_rules(rows: Sequence[Any]) -> set[str]:
    from detdiag.evidence.case import Case
    from detdiag.verdict import decide

    layers = decide(Case(tuple(rows), target={"kind": "endpoint"})).to_dict()["layers"]
    told = [f for layer in layers for f in layer["findings"] if f["outcome"] == "failed"]
    return {f["rule"] for f in told}


@pytest.mark.parametrize(
    ("family", "slower", "name", "known"),
    [
        ("vllm", 3.0, "cache_salt", True),
        ("llama-cpp-python", None, "another prompt before", True),
        ("ollama", None, "another prompt before", False),
        ("ollama", 2.0, "another prompt before", True),
        (None, 2.0, "another prompt before", False),
        (None, 1.1, "a leading line of its own", False),
        (None, None, "a leading line of its own", False),
    ],
)
def test_the_lever_is_one_that_the_server_has(
    family: str | None, slower: float | None, name: str, known: bool
) -> None:
    lever = lever_for(family, slower)
    assert (lever.name, lever.known) == (name, known)


@pytest.mark.parametrize("jittery", [False, True])
def test_other_prompts_beside_the_same_question_are_no_drift(jittery: bool) -> None:
    """The baseline asked one prompt, this session several: on a server with one slot most calls
    of the same question now come after another prompt, and answer otherwise."""

    def session(name: str, share_another: float) -> list[Any]:
        draw, out = random.Random(name), []
        for number in range(30):
            another = draw.random() < share_another
            context = {"after": "another" if another else "same", "sent_s": 0.0, "end_s": 1.0}
            unit = f"{name}{number // 4}"
            out.append(reply("ab"[another], unit=unit, session=name, context=context))
        return out

    found = verdict_of([*session("baseline", 0.0), *session("now", 0.7 if jittery else 1.0)])
    assert found["layer"] != "version", found["sentence"]


def test_a_leading_line_is_judged_by_its_own_test_alone() -> None:
    """Three of four starts with lines of their own: 0.008 before the correction, too much after."""
    calm = [
        reply("a", unit=f"i{i // 4}", context={"after": "same", "sent_s": 0.0, "end_s": 1.0})
        for i in range(20)
    ]
    rows = []
    for number in range(4):
        for turn in range(5):
            context = {
                "salt": f"s{number}", "lever": "a leading line of its own",
                "after": "same" if turn else "another", "sent_s": 0.0, "end_s": 1.0,
            }  # fmt: skip
            odd = turn == 0 and number < 3
            rows.append(
                reply("b" if odd else "a", arm="warm" if turn else "cold", unit=f"s{number}",
                      query=f"q+s{number}", context=context)
            )  # fmt: skip
    steady = [o for i in range(8) for o in burst("aaaa", f"b{i}")]
    found = verdict_of([*calm, *rows, *steady])
    assert found["layer"] is None, found["sentence"]
