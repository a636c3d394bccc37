"""Signatures: the fast key agrees with the canonical form on any request."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from detdiag.evidence.adapters import pairs
from detdiag.incidents.columns import Columns
from detdiag.incidents.extract import Extractor
from detdiag.incidents.signature import Keyer, signature
from detdiag.inputs.canonical import request_digest

NAMES = st.sampled_from(
    ["model", "messages", "temperature", "user", "extra_body", "options", "top_p", "x-request-id"]
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.sampled_from([0.0, 1.0, 0.1, 1e-7, 1e22, 2.0**60, float(2**53)]),
        st.sampled_from(["a", "b", "é", "\ud800"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=6,
)
REQUESTS = st.dictionaries(NAMES, VALUES, max_size=6).map(
    lambda r: {"messages": [{"role": "user", "content": "q"}], **r}
)


@settings(max_examples=120, deadline=None)
@given(REQUESTS, REQUESTS)
def test_keys_are_equal_exactly_when_digests_are(a: dict[str, Any], b: dict[str, Any]) -> None:
    keyer = Keyer()
    if not a["messages"] or not b["messages"]:
        return
    assert (keyer.key(a) == keyer.key(b)) == (request_digest(a) == request_digest(b))


@settings(max_examples=60, deadline=None)
@given(REQUESTS, st.randoms())
def test_order_of_keys_and_inert_fields_change_nothing(a: dict[str, Any], rng: Any) -> None:
    items = list(a.items())
    rng.shuffle(items)
    other = {**dict(items), "user": "someone else", "metadata": {"a": rng.random()}}
    assert Keyer().key(a) == Keyer().key(other)
    assert signature(a).digest == signature(other).digest


def test_what_is_left_out_is_named() -> None:
    found = signature(
        {
            "model": "m",
            "prompt": "p",
            "user": "u",
            "temperature": 0.0,
            "extra_body": {"trace_id": 1, "top_k": 2},
            "tools": [{"user": "kept: part of the prompt"}],
        }
    )
    assert found.left_out == ("user", "extra_body.trace_id")
    assert found.canonical == {
        "extra_body": {"top_k": 2},
        "model": "m",
        "prompt": "p",
        "temperature": 0,
        "tools": [{"user": "kept: part of the prompt"}],
    }
    assert found.digest == request_digest(found.canonical)


def test_a_request_without_a_prompt_has_no_key() -> None:
    assert Keyer().key({"model": "m", "temperature": 0}) == 0
    assert Keyer().key({"model": "m", "messages": []}) == 0


MAYBE = st.one_of(st.none(), st.sampled_from(["x", "y", 3, 0, "2025-01-01T00:00:00Z", 1.7e9]))
REPLIES = st.fixed_dictionaries(
    {"choices": st.just([{"index": 0, "message": {"role": "assistant", "content": "a"}}])},
    optional={
        "id": MAYBE,
        "model": MAYBE,
        "created": MAYBE,
        "system_fingerprint": MAYBE,
        "provider": MAYBE,
        "error": st.one_of(st.none(), st.just({"message": "x"})),
        "usage": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {},
                optional={
                    "prompt_tokens_details": st.one_of(st.none(), st.just({"cached_tokens": 5})),
                    "cache_read_input_tokens": st.integers(0, 3),
                },
            ),
        ),
        "timings": st.one_of(st.none(), st.just({"cache_n": 1})),
    },
)
ROWS = st.fixed_dictionaries(
    {
        "request": st.sampled_from(
            [
                {"model": "m", "messages": [{"content": "q"}]},
                {"messages": "q"},
                {"body": {"model": "m", "prompt": "p"}},
                {"model": "m"},
            ]
        ),
        "response": REPLIES,
    },
    optional={
        "start_time": MAYBE,
        "timestamp": MAYBE,
        "end_time": MAYBE,
        "latency_ms": st.one_of(st.none(), st.sampled_from([5, -1, "x"])),
        "duration_s": st.one_of(st.none(), st.just(2.5)),
        "replica": MAYBE,
        "provider": MAYBE,
        "system_fingerprint": MAYBE,
        "status": st.sampled_from([None, 200, 429, "200", "error"]),
        "url": st.sampled_from(["https://x/models/g:generateContent", "/v1/chat/completions"]),
        "factors": st.just({"replica": "own"}),
    },
)


def columns_of(rows: list[Any], short: bool) -> dict[str, Any]:
    columns = Columns()
    extractor = Extractor(columns, pairs, short=short)  # type: ignore[arg-type]
    extractor.read([json.dumps(one).encode() + b"\n" for one in rows], 1, 0)
    order = sorted(range(len(columns.numbers["line"])), key=columns.numbers["line"].__getitem__)
    words = {n: list(t) for n, t in columns.words.items()}
    return {
        "numbers": {n: [str(a[i]) for i in order] for n, a in columns.numbers.items()},
        "names": {n: [words[n][a[i]] for i in order] for n, a in columns.codes.items()},
        "left_out": columns.left_out,
        "broken": columns.broken,
        "records": columns.records,
        "inert": {k: v for k, v in columns.inert.items() if v},
    }


@settings(max_examples=150, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=5))
def test_the_short_path_gives_the_rows_of_the_adapter(rows: list[Any]) -> None:
    assert columns_of(rows, short=True) == columns_of(rows, short=False)
