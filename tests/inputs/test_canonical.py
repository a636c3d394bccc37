from __future__ import annotations

import copy
import hashlib
import json

import pytest

from detdiag.inputs.canonical import (
    canonical_request,
    ordered_digest,
    prompt_part,
    request_digest,
    sampling_parameters,
)

BODY = {
    "model": "m",
    "messages": [{"role": "user", "content": "caf\u0065\u0301 \n"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": 1, "b": 2.0}}}],
    "temperature": 0,
    "max_tokens": 5,
}


@pytest.mark.parametrize(
    "extra",
    [
        {"user": "u"},
        {"metadata": {"temperature": 9}},
        {"requestMetadata": {"a": "b"}},
        {"X-Request-ID": "7"},
        {"traceId": "7"},
        {"idempotencyKey": "k"},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"safetyIdentifier": "s", "store": True, "promptCacheKey": "x"},
        {"extra_body": {"user": "u", "trace_id": "t"}},
        {"extra_headers": {"traceparent": "00-1", "X-Stainless-Lang": "python"}},
    ],
)
def test_inert_fields_never_change_the_digest(extra: dict) -> None:
    assert request_digest({**BODY, **extra}) == request_digest(BODY)
    assert ordered_digest({**extra, **BODY}) == ordered_digest(BODY)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 1},
        {"messages": [{"role": "user", "content": "caf\u00e9 \n"}]},
        {"extra_body": {"top_k": 1}},
        {"seed": 3},
        {"messages": [{"role": "user", "content": "caf\u0065\u0301 "}]},
    ],
)
def test_live_fields_change_the_digest(change: dict) -> None:
    assert request_digest({**BODY, **change}) != request_digest(BODY)


def test_a_tool_argument_named_like_an_inert_field_is_part_of_the_prompt() -> None:
    other = copy.deepcopy(BODY)
    other["tools"][0]["function"]["parameters"]["user"] = {"type": "string"}
    assert request_digest(other) != request_digest(BODY)


def test_digest_is_sha256_of_sorted_json() -> None:
    text = json.dumps(BODY, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    assert request_digest(BODY) == "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def test_order_counts_inside_tools_and_nowhere_else() -> None:
    turned = dict(reversed(BODY.items()))
    turned["messages"] = [dict(reversed(BODY["messages"][0].items()))]
    assert ordered_digest(turned) == ordered_digest(BODY)
    tool = copy.deepcopy(BODY)
    tool["tools"] = [dict(reversed(BODY["tools"][0].items()))]
    assert request_digest(tool) == request_digest(BODY)
    assert ordered_digest(tool) != ordered_digest(BODY)


def test_a_whole_float_is_the_same_parameter_but_another_prompt() -> None:
    assert request_digest({**BODY, "temperature": 0.0}) == request_digest(BODY)
    other = copy.deepcopy(BODY)
    other["tools"][0]["function"]["parameters"]["b"] = 2
    assert request_digest(other) != request_digest(BODY)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"temperature": 0, "max_completion_tokens": 9}, {"temperature": 0, "max_tokens": 9}),
        (
            {"generationConfig": {"topP": 0.5, "candidateCount": 2, "stopSequences": ["x"]}},
            {"top_p": 0.5, "n": 2, "stop": ["x"]},
        ),
        (
            {"inferenceConfig": {"maxTokens": 4, "temperature": 0.1}},
            {"max_tokens": 4, "temperature": 0.1},
        ),
        (
            {"options": {"num_predict": 3, "repeat_penalty": 1.1, "seed": 1}},
            {"max_tokens": 3, "repetition_penalty": 1.1, "seed": 1},
        ),
        (
            {"inputs": "x", "parameters": {"do_sample": False, "max_new_tokens": 2}},
            {"do_sample": False, "max_tokens": 2},
        ),
        ({"sampling_params": {"temperature": 0}}, {"temperature": 0}),
        (
            {"temperature": 1, "extra_body": {"temperature": 0, "top_k": 1}},
            {"temperature": 0, "top_k": 1},
        ),
        ({"stop": "END", "top_p": None}, {"stop": ["END"]}),
    ],
)
def test_parameters_of_every_body_shape(body: dict, expected: dict) -> None:
    assert sampling_parameters(body) == expected


def test_prompt_part_leaves_parameters_out() -> None:
    assert set(prompt_part(BODY)) == {"messages", "tools"}
    assert "metadata" not in canonical_request({**BODY, "metadata": {}})
