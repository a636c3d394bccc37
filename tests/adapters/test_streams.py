"""Streams put together give the body that an unstreamed call would have given."""

from __future__ import annotations

import json
from typing import Any

import pytest

from detdiag.evidence.adapters import adapt_response
from detdiag.evidence.adapters.streams import CUT, decode_body


def sse(*events: Any, done: bool = True, newline: str = "\n") -> str:
    lines = [f"event: x{newline}data: {json.dumps(e)}{newline}{newline}" for e in events]
    return f": comment{newline}" + "".join(lines) + (f"data: [DONE]{newline}{newline}" * done)


def delta(**fields: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": fields}]}


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_openai_chat_chunks(newline: str) -> None:
    entry = {"token": "a", "logprob": -0.1, "top_logprobs": []}
    first = delta(role="assistant", content="a")
    first["choices"][0]["logprobs"] = {"content": [entry]}
    last = {**delta(), "system_fingerprint": "fp"}
    last["choices"][0]["finish_reason"] = "stop"
    usage = {"id": "c", "choices": [], "usage": {"prompt_tokens": 1}}
    body = decode_body(sse(first, delta(content="b"), last, usage, newline=newline))
    found = adapt_response(body)
    assert (found.text, found.finish_reason) == ("ab", "stop")
    assert found.positions is not None and len(found.positions) == 1
    assert body["system_fingerprint"] == "fp" and body["usage"] == {"prompt_tokens": 1}


def test_streamed_tool_call() -> None:
    calls = [
        {"index": 0, "id": "1", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a"'}},
        {"index": 0, "function": {"arguments": ":1}"}},
    ]
    body = decode_body(sse(*[delta(tool_calls=[c]) for c in calls]))
    assert adapt_response(body).text == 'f({"a":1})'


def test_two_choices_stay_apart() -> None:
    chunks = [
        {"choices": [{"index": i, "delta": {"content": t}}]}
        for i, t in [(0, "a"), (1, "x"), (0, "b"), (1, "y")]
    ]
    choices = decode_body(sse(*chunks))["choices"]
    assert [c["message"]["content"] for c in choices] == ["ab", "xy"]


def test_anthropic_events() -> None:
    body = decode_body(
        sse(
            {"type": "message_start", "message": {"id": "m", "type": "message", "content": []}},
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "text", "text": ""},
            },
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": "he"},
            },
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": "y"},
            },
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
            done=False,
        )
    )
    found = adapt_response(body)
    assert (found.text, found.finish_reason) == ("hey", "end_turn")


def test_gemini_ollama_responses_tgi() -> None:
    parts = [{"candidates": [{"content": {"parts": [{"text": t}]}}]} for t in "ab"]
    assert adapt_response(decode_body(sse(*parts, done=False))).text == "ab"
    assert adapt_response(decode_body(json.dumps(parts))).text == "ab"
    lines = [
        {"message": {"role": "assistant", "content": "a"}, "done": False},
        {"message": {"role": "assistant", "content": "b"}, "done": True, "done_reason": "stop"},
    ]
    found = adapt_response(decode_body("\n".join(json.dumps(line) for line in lines)))
    assert (found.text, found.finish_reason) == ("ab", "stop")
    item = {"type": "message", "content": [{"type": "output_text", "text": "z"}]}
    whole = {"object": "response", "output": [item]}
    events = [
        {"type": "response.output_text.delta", "delta": "z"},
        {"type": "response.completed", "response": whole},
    ]
    assert adapt_response(decode_body(sse(*events))).text == "z"
    tokens = [
        {"token": {"id": 1, "text": "a", "logprob": -0.1}, "generated_text": None},
        {"token": {"id": 2, "text": "b", "logprob": -0.2}, "generated_text": "ab", "details": None},
    ]
    found = adapt_response(decode_body(sse(*tokens, done=False)))
    assert found.text == "ab" and found.token_ids == (1, 2)


def cohere_events(*, cut: bool = False) -> list[dict[str, Any]]:
    def content(kind: str, index: int, **fields: Any) -> dict[str, Any]:
        return {"type": kind, "index": index, "delta": {"message": {"content": fields}}}

    def call(kind: str, **function: str) -> dict[str, Any]:
        fields = {"id": "c1", "type": "function"} if kind == "tool-call-start" else {}
        calls = {**fields, "function": function}
        return {"type": kind, "index": 0, "delta": {"message": {"tool_calls": calls}}}

    entry = {"text": "He", "token_ids": [12], "logprobs": [-0.25]}
    events = [
        {"type": "message-start", "id": "m1", "delta": {"message": {"role": "assistant"}}},
        content("content-start", 0, type="thinking", thinking=""),
        content("content-delta", 0, thinking="greet"),
        content("content-start", 1, type="text", text=""),
        {**content("content-delta", 1, text="He"), "logprobs": entry},
        content("content-delta", 1, text="y"),
        {"type": "content-end", "index": 1},
        call("tool-call-start", name="wave", arguments=""),
        call("tool-call-delta", arguments='{"to": '),
        call("tool-call-delta", arguments='"you"}'),
        {
            "type": "message-end",
            "delta": {"finish_reason": "COMPLETE", "usage": {"tokens": {"input_tokens": 3}}},
        },
    ]
    return events[:-1] if cut else events


def test_cohere_v2_events_are_the_unstreamed_body() -> None:
    whole = {
        "id": "m1",
        "finish_reason": "COMPLETE",
        "usage": {"tokens": {"input_tokens": 3}},
        "message": {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "greet"},
                {"type": "text", "text": "Hey"},
            ],
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "wave", "arguments": '{"to": "you"}'},
                }
            ],
        },
        "logprobs": [{"text": "He", "token_ids": [12], "logprobs": [-0.25]}],
    }
    assert decode_body(json.dumps(cohere_events())) == whole
    assert decode_body(sse(*cohere_events(), done=False)) == whole
    assert adapt_response(whole).text is not None
    assert CUT in decode_body(json.dumps(cohere_events(cut=True)))


@pytest.mark.parametrize("cut", [False, True])
def test_cohere_v1_events(cut: bool) -> None:
    events: list[dict[str, Any]] = [
        {"is_finished": False, "event_type": "stream-start", "generation_id": "g"},
        *({"event_type": "text-generation", "text": t} for t in ("He", "y")),
    ]
    whole = {"generation_id": "g", "response_id": "r", "text": "Hey", "chat_history": []}
    end = {"event_type": "stream-end", "finish_reason": "COMPLETE", "response": whole}
    body = decode_body("\n".join(json.dumps(e) for e in ([*events] if cut else [*events, end])))
    found = adapt_response(body)
    assert (found.text, found.finish_reason) == ("Hey", None if cut else "COMPLETE")
    assert (CUT in body) is cut


def test_converse_stream_is_the_unstreamed_body() -> None:
    def delta_of(index: int, **fields: Any) -> dict[str, Any]:
        return {"contentBlockDelta": {"contentBlockIndex": index, "delta": fields}}

    start = {"toolUse": {"toolUseId": "t1", "name": "wave"}}
    events = [
        {"messageStart": {"role": "assistant"}},
        delta_of(0, reasoningContent={"text": "gre"}),
        delta_of(0, reasoningContent={"text": "et"}),
        {"contentBlockStop": {"contentBlockIndex": 0}},
        delta_of(1, text="He"),
        delta_of(1, text="y"),
        {"contentBlockStart": {"contentBlockIndex": 2, "start": start}},
        delta_of(2, toolUse={"input": '{"to": '}),
        delta_of(2, toolUse={"input": '"you"}'}),
        {"messageStop": {"stopReason": "tool_use"}},
        {"metadata": {"usage": {"inputTokens": 3}, "metrics": {"latencyMs": 5}}},
    ]
    whole = {
        "output": {
            "message": {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "greet"}}},
                    {"text": "Hey"},
                    {"toolUse": {"toolUseId": "t1", "name": "wave", "input": {"to": "you"}}},
                ],
            }
        },
        "stopReason": "tool_use",
        "usage": {"inputTokens": 3},
        "metrics": {"latencyMs": 5},
    }
    assert decode_body(json.dumps(events)) == whole
    assert CUT in decode_body(json.dumps(events[:6]))


@pytest.mark.parametrize("raw", [None, "", "  ", "<html>502</html>", "data: nonsense\n\n", "{"])
def test_what_is_no_body_is_none(raw: str | None) -> None:
    assert decode_body(raw) is None
