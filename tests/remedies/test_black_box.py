"""Votes against scipy and brute force, cache keys field by field, canonical prompts, retries."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from detdiag.errors import DetdiagError
from detdiag.incidents.signature import signature
from detdiag.inputs.canonical import canonical_request
from detdiag.remedies import (
    NotValid,
    PromptPolicy,
    ResponseCache,
    canonical_body,
    canonical_bytes,
    canonical_text,
    frozen_clock,
    majority_vote,
    request_key,
    validated,
    vote_error,
    votes_needed,
)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.51, 0.75, 0.9, 0.999, 1.0])
@pytest.mark.parametrize("votes", [1, 2, 5, 9, 101, 999])
def test_vote_error_is_the_binomial_tail(share: float, votes: int) -> None:
    assert vote_error(share, votes) == pytest.approx(binom.cdf(votes // 2, votes, share), abs=1e-12)


@pytest.mark.parametrize("votes", [1, 3, 5, 7])
def test_vote_error_by_counting_every_outcome(votes: int) -> None:
    share = 0.8
    lost = sum(
        share ** sum(o) * (1 - share) ** (votes - sum(o))
        for o in itertools.product((0, 1), repeat=votes)
        if 2 * sum(o) <= votes
    )
    assert vote_error(share, votes) == pytest.approx(lost)


def test_published_example() -> None:
    assert vote_error(0.9, 5) == pytest.approx(0.0086, abs=5e-5)
    assert vote_error(0.9, 9) == pytest.approx(0.0009, abs=5e-5)


@pytest.mark.parametrize("share", [0.55, 0.6, 0.7, 0.85, 0.95, 1.0])
@pytest.mark.parametrize("error", [0.2, 0.05, 0.01])
def test_votes_needed_is_the_smallest_odd_number(share: float, error: float) -> None:
    expected = next(n for n in range(1, 2001, 2) if binom.cdf(n // 2, n, share) <= error)
    assert votes_needed(share, error) == expected


@pytest.mark.parametrize(("share", "runs"), [(0.5, None), (0.4, None), (0.505, None), (0.6, 20)])
def test_near_one_half_is_refused(share: float, runs: int | None) -> None:
    with pytest.raises(DetdiagError, match="votes"):
        votes_needed(share, 0.01, runs=runs)


def test_few_runs_ask_for_more_votes() -> None:
    assert votes_needed(0.9, 0.01, runs=40) > votes_needed(0.9, 0.01, runs=4000)
    assert votes_needed(0.9, 0.01, runs=10**7) == votes_needed(0.9, 0.01)


def test_majority_vote_stops_early_and_keeps_the_first_of_a_tie() -> None:
    answers = iter(["a", "b", "A", "a", "b"])
    vote = majority_vote(lambda: next(answers), 5, key=str.lower)
    assert (vote.answer, vote.decided, vote.counts, vote.calls) == ("a", True, (3, 1), 4)
    answers = iter(["x", "y"])
    vote = majority_vote(lambda: next(answers), 2)
    assert (vote.answer, vote.decided, vote.calls) == ("x", False, 2)


REQUEST: dict[str, Any] = {
    "model": "m-2026-01-01",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Add 2 and 3."},
    ],
    "tools": [{"type": "function", "function": {"name": "add", "parameters": {"a": 1, "b": 2}}}],
    "temperature": 0,
    "top_p": 1.0,
    "max_tokens": 16,
    "stop": ["\n"],
    "seed": 7,
}


def shuffled(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: shuffled(value[k]) for k in reversed(value)}
    return [shuffled(v) for v in value] if isinstance(value, list) else value


def test_key_ignores_order_number_spelling_and_inert_fields() -> None:
    key = request_key(REQUEST)
    assert request_key(shuffled(REQUEST)) == key
    assert request_key({**REQUEST, "temperature": 0.0, "top_p": 1}) == key
    inert = {"user": "u1", "metadata": {"a": 1}, "stream": True, "request_id": "r", "timestamp": 3}
    assert request_key({**REQUEST, **inert}) == key
    assert request_key(json.loads(json.dumps(REQUEST))) == key


@pytest.mark.parametrize(
    "change",
    [
        {"model": "m-2026-02-01"},
        {"temperature": 0.1},
        {"top_p": 0.9},
        {"max_tokens": 17},
        {"stop": []},
        {"seed": 8},
        {"n": 2},
        {"logit_bias": {"5": 1}},
        {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "system", "content": "Be brief!"}, REQUEST["messages"][1]]},
        {"messages": [REQUEST["messages"][0], {"role": "user", "content": "Add 2 and 3. "}]},
        {"messages": REQUEST["messages"][::-1]},
        {"tools": []},
        {"tools": [{"type": "function", "function": {"name": "add", "parameters": {"a": 1}}}]},
        {"tool_choice": "none"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_key_differs_under_each_key_field(change: dict[str, Any]) -> None:
    assert request_key({**REQUEST, **change}) != request_key(REQUEST)


def test_key_differs_by_version_provider_and_tenant() -> None:
    keys = {
        request_key(REQUEST),
        request_key(REQUEST, model_version="fp_1"),
        request_key(REQUEST, model_version="fp_2"),
        request_key(REQUEST, provider="fp_1"),
        request_key(REQUEST, namespace="fp_1"),
    }
    assert len(keys) == 5
    with pytest.raises(DetdiagError, match="model"):
        request_key({"messages": []})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=6), VALUES, max_size=5))
def test_key_is_the_incident_signature_and_a_model(fields: dict[str, Any]) -> None:
    body = {**fields, "model": "m"}
    other = {**shuffled(fields), "model": "m", "user": "someone"}
    assert (request_key(body) == request_key(other)) == (
        signature(body).digest == signature(other).digest
    )
    assert canonical_request(body) == canonical_request(other)


@pytest.mark.parametrize("name", ["answers.db", "answers"])
def test_cache_returns_the_first_answer_and_marks_hits(tmp_path: Path, name: str) -> None:
    cache = ResponseCache(tmp_path / name)
    calls: list[int] = []

    def call() -> dict[str, Any]:
        calls.append(1)
        return {"text": f"answer {len(calls)} \u00e9\u4e2d"}

    first = cache.answer(REQUEST, call)
    again = ResponseCache(tmp_path / name).answer(shuffled(REQUEST), call)
    assert (first.hit, again.hit, len(calls)) == (False, True, 1)
    assert first.answer == again.answer
    assert "cache_hit" not in first.marked()
    assert again.marked() == {**first.answer, "cache_hit": True}
    assert cache.answer(REQUEST, call, model_version="v2").answer != first.answer
    assert cache.get("sha256:none") is None


@pytest.mark.parametrize("name", ["answers.db", "answers"])
def test_callers_at_the_same_time_go_on_with_one_answer(tmp_path: Path, name: str) -> None:
    cache = ResponseCache(tmp_path / name)
    with ThreadPoolExecutor(8) as pool:
        stored = list(pool.map(lambda i: cache.put("k", i), range(24)))
    assert len({s.answer for s in stored}) == 1
    assert sum(not s.hit for s in stored) == 1
    found = cache.get("k")
    assert found is not None and found.answer == stored[0].answer
    assert len(list((tmp_path / name).glob("*")) if name == "answers" else [1]) == 1


def test_cache_on_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("not a database " * 50)
    with pytest.raises(DetdiagError, match="cache"):
        ResponseCache(tmp_path / "notes.db")


def test_canonical_text() -> None:
    assert canonical_text("\ufeffcafe\u0301\r\nx\ry") == "caf\u00e9\nx\ny"
    keep = PromptPolicy(form=None, newlines="keep", strip_bom=False)
    assert canonical_text("\ufeffe\u0301\r\n", keep) == "\ufeffe\u0301\r\n"


def test_canonical_body_is_one_form_for_two_clients() -> None:
    tool = {"type": "function", "function": {"name": "b", "parameters": {"x": 1, "y": 2}}}
    other = {"type": "function", "function": {"name": "a"}}
    one = {
        "model": "m", "messages": [{"role": "user", "content": "\ufeffe\u0301\r\n"}],
        "tools": [tool, other], "user": "u",
    }  # fmt: skip
    two = {
        "tools": [other, shuffled(tool)], "request_id": "r",
        "messages": [{"content": "\u00e9\n", "role": "user"}], "model": "m",
    }  # fmt: skip
    assert canonical_bytes(one) == canonical_bytes(two)
    assert [t["function"]["name"] for t in canonical_body(one)["tools"]] == ["a", "b"]
    swapped = {**one, "messages": [*one["messages"], {"role": "user", "content": "2"}][::-1]}  # type: ignore[misc]
    assert canonical_body(swapped)["messages"][0]["content"] == "2"
    assert canonical_body(canonical_body(one)) == canonical_body(one)


def test_frozen_clock_reaches_chat_templates_and_is_undone() -> None:
    from transformers.utils import chat_template_utils as utils

    before = utils.datetime
    template = "{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}"
    render = utils.render_jinja_template

    def rendered() -> str:
        return str(
            render(conversations=[[{"role": "user", "content": ""}]], chat_template=template)[0][0]
        )

    assert rendered() != rendered()
    with frozen_clock("2026-01-02T03:04:05"):
        assert rendered() == rendered() == "2026-01-02 03:04:05.000000"
    assert utils.datetime is before
    with pytest.raises(DetdiagError), frozen_clock("yesterday"):
        pass


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_validated_retries_with_the_error() -> None:
    answers = iter(["no json", '{"n": "x"}', '```json\n{"n": 3}\n```'])
    told: list[str | None] = []

    def call(error: str | None) -> str:
        told.append(error)
        return next(answers)

    found = validated(call, SCHEMA)
    assert (found.value, found.attempts, len(found.errors)) == ({"n": 3}, 3, 2)
    assert told[0] is None and "JSON" in str(told[1]) and "n" in str(told[2])


def test_validated_gives_up_and_refuses_bad_schemas() -> None:
    with pytest.raises(NotValid) as caught:
        validated(lambda _: "[]", SCHEMA, retries=1)
    assert len(caught.value.errors) == 2
    with pytest.raises(DetdiagError, match="Schema"):
        validated(lambda _: "[]", {"type": 3})


def test_validated_by_a_model_class() -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        n: int

    answers = iter(['{"n": "many"}', '{"n": 4}'])
    assert validated(lambda _: next(answers), Answer).value == Answer(n=4)


def test_black_box_remedies_need_no_torch() -> None:
    code = (
        "import sys; import detdiag.remedies as r; r.votes_needed(.9, .01); "
        "r.request_key({'model': 'm'}); r.canonical_bytes({'model': 'm'}); r.validated; "
        "assert not {'torch', 'transformers', 'pandas', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
