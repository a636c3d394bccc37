"""Adapters meet any JSON: they never crash and never invent a channel."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detdiag.errors import DetdiagError
from detdiag.evidence.adapters import adapt_response, bodies, read_evidence, response_factors
from detdiag.evidence.adapters.streams import decode_body, merge

FIXTURES = Path(__file__).parents[2] / "fixtures" / "evidence"
KEYS = st.sampled_from(
    "choices message content text logprobs tokens token_logprobs top_logprobs token logprob id "
    "bytes candidates parts output outputs response request body usage messages model meta_info "
    "output_token_logprobs details top_tokens generated_text completion_probabilities stop_reason "
    "finish_reason type role tool_calls function arguments log entries interactions attributes "
    "spans resourceSpans custom_id run_type inputs extra generations kwargs messages startTime "
    "endTime created delta index generation results done events name".split()
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["assistant", "chat.completion", "message", "llm", "9" * 400, "\ud800", "{", "[["]
    ),
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.one_of(KEYS, st.text(max_size=4)), inner)
    ),
    max_leaves=25,
)
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def numbers_in(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from numbers_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers_in(inner)
    else:
        yield value


@QUICK
@given(JSON)
def test_any_body(value: Any) -> None:
    for output in bodies.outputs(value):
        assert output.text is None or isinstance(output.text, str)
        present = [v for v in numbers_in(value) if isinstance(v, (int, float))]
        for position in output.positions or ():
            assert position.logprob is None or position.logprob in present
            assert position.id is None or position.id in present or str(position.id) in str(value)
        for ident in output.token_ids or ():
            assert ident in present or str(ident) in str(value)
    assert isinstance(response_factors(value), dict)
    adapt_response(value)


@QUICK
@given(st.lists(JSON, max_size=4))
def test_any_stream(chunks: list[Any]) -> None:
    bodies.outputs(merge(chunks))
    decode_body("".join(f"data: {json.dumps(c)}\n\n" for c in chunks))


@QUICK
@given(st.lists(JSON, min_size=1, max_size=4), st.booleans())
def test_any_file(rows: list[Any], as_array: bool) -> None:
    text = json.dumps(rows) if as_array else "\n".join(json.dumps(row) for row in rows)
    read_text(text)


FIXTURE_ROWS = [
    json.loads(path.read_text().splitlines()[index])
    for path in sorted(FIXTURES.rglob("*.jsonl"))
    for index in (0, 1)
]
HAR = json.loads((FIXTURES / "har" / "session.har").read_text())


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_known_record_with_one_part_replaced(data: st.DataObject) -> None:
    row = json.loads(json.dumps(data.draw(st.sampled_from(FIXTURE_ROWS))))
    mutate(row, data)
    read_text(json.dumps(row) + "\n" + json.dumps(row))


@QUICK
@given(st.data())
def test_a_har_with_one_part_replaced(data: st.DataObject) -> None:
    log = json.loads(json.dumps({"log": {"version": "1.2", "entries": HAR["log"]["entries"][:3]}}))
    mutate(log, data)
    read_text(json.dumps(log))


@QUICK
@given(st.text(max_size=300))
def test_any_text(text: str) -> None:
    read_text("> POST /v1/chat/completions HTTP/1.1\n" + text)
    read_text("=> Send header\n0000: POST / HTTP/1.1\n" + text)
    read_text("interactions:\n" + text)
    read_text("output,response\n" + text)


def mutate(value: Any, data: st.DataObject) -> None:
    """Replace one node, at any depth, by any JSON."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        inner = value[key]
        if not isinstance(inner, (dict, list)) or not inner or data.draw(st.booleans()):
            value[key] = data.draw(JSON)
            return
        value = inner


def read_text(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.json"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            found = read_evidence(path)
        except DetdiagError:
            return
        if found is not None:
            for one in found.observations:
                json.dumps(one.to_dict())
                assert one.routing is None or "routing" in text
