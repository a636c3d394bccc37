"""Cohere: events of Chat v2 (``type``) and v1 (``event_type``), as cohere-ai/cohere-python types
them (src/cohere/types/streamed_chat_response_v2.py and chat_stream_event.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detdiag.evidence.adapters.shape import dig, integer, obj, text
from detdiag.evidence.adapters.streams.parts import ended


def is_stream(chunks: Sequence[Mapping[str, Any]]) -> bool:
    return any(c.get("type") == "message-start" for c in chunks)


def merged(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    calls: dict[int, dict[str, Any]] = {}
    plan, logprobs = "", []
    for chunk in chunks:
        kind, index = chunk.get("type"), integer(chunk.get("index")) or 0
        message = obj(dig(chunk, "delta", "message"))
        if kind == "message-start":
            body["id"] = chunk.get("id")
        elif kind in ("content-start", "content-delta"):
            _add_content(blocks.setdefault(index, {"type": "text"}), obj(message.get("content")))
        elif kind == "tool-plan-delta":
            plan += text(message.get("tool_plan")) or ""
        elif kind in ("tool-call-start", "tool-call-delta"):
            _add_call(calls.setdefault(index, {}), obj(message.get("tool_calls")))
        elif kind == "message-end":
            body.update(obj(chunk.get("delta")))
        if isinstance(chunk.get("logprobs"), Mapping):
            logprobs.append(chunk["logprobs"])
    body["message"] = {
        "role": "assistant",
        "content": [blocks[i] for i in sorted(blocks)],
        **({"tool_plan": plan} if plan else {}),
        **({"tool_calls": [calls[i] for i in sorted(calls)]} if calls else {}),
    }
    whole = body.setdefault("finish_reason", None)
    return ended({**body, "logprobs": logprobs} if logprobs else body, whole)


def _add_content(block: dict[str, Any], piece: Mapping[str, Any]) -> None:
    block["type"] = text(piece.get("type")) or block["type"]
    for key in ("text", "thinking"):
        if isinstance(piece.get(key), str):
            block[key] = block.get(key, "") + piece[key]


def _add_call(call: dict[str, Any], piece: Mapping[str, Any]) -> None:
    call.update({key: piece[key] for key in ("id", "type") if piece.get(key) is not None})
    function = call.setdefault("function", {"name": "", "arguments": ""})
    for key in function:
        function[key] += text(dig(piece, "function", key)) or ""


def is_v1(chunks: Sequence[Mapping[str, Any]]) -> bool:
    return any(c.get("event_type") == "stream-start" for c in chunks)


def v1(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The last event carries the whole response; a stream that broke off has its pieces."""
    start = next(c for c in chunks if c.get("event_type") == "stream-start")
    pieces = [text(c.get("text")) or "" for c in chunks if c.get("event_type") == "text-generation"]
    end = next((c for c in chunks if c.get("event_type") == "stream-end"), None)
    body = {"generation_id": start.get("generation_id"), "text": "".join(pieces)}
    if end is not None:
        body |= {**obj(end.get("response")), "finish_reason": end.get("finish_reason")}
    return ended(body, end)
