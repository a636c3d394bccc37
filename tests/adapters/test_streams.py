"""Streams put together give the body that an unstreamed call would have given."""

from __future__ import annotations

import json
from typing import Any

import pytest

from detdiag.evidence.adapters import adapt_response
from detdiag.evidence.adapters.streams import decode_body


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


@pytest.mark.parametrize("raw", [None, "", "  ", "<html>502</html>", "data: nonsense\n\n", "{"])
def test_what_is_no_body_is_none(raw: str | None) -> None:
    assert decode_body(raw) is None
