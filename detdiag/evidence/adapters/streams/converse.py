"""Amazon Bedrock ConverseStream: events of one key each (API reference of Bedrock,
ConverseStreamOutput and ContentBlockDelta)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detdiag.evidence.adapters.shape import dig, integer, loads_or_none, obj, text
from detdiag.evidence.adapters.streams.parts import ended

EVENTS = ("messageStart", "contentBlockStart", "contentBlockDelta", "messageStop")


def is_stream(chunks: Sequence[Mapping[str, Any]]) -> bool:
    return any(isinstance(c.get(event), Mapping) for c in chunks for event in EVENTS)


def merged(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for kind, event in chunk.items():
            index = integer(dig(event, "contentBlockIndex")) or 0
            if kind == "contentBlockStart":
                blocks[index] = {k: {**obj(v)} for k, v in obj(dig(event, "start")).items()}
            elif kind == "contentBlockDelta":
                _add(blocks.setdefault(index, {}), obj(dig(event, "delta")))
            elif kind == "messageStop":
                body["stopReason"] = text(dig(event, "stopReason"))
            elif kind == "metadata":
                body.update(obj(event))
    for block in blocks.values():
        _decode_input(block)
    content = [blocks[index] for index in sorted(blocks)]
    body["output"] = {"message": {"role": "assistant", "content": content}}
    return ended(body, body.get("stopReason"))


def _add(block: dict[str, Any], delta: Mapping[str, Any]) -> None:
    if isinstance(delta.get("text"), str):
        block["text"] = block.get("text", "") + delta["text"]
    thought = text(dig(delta, "reasoningContent", "text"))
    if thought is not None:
        held = block.setdefault("reasoningContent", {"reasoningText": {"text": ""}})
        held["reasoningText"]["text"] += thought
    piece = text(dig(delta, "toolUse", "input"))
    if piece is not None:
        call = block.setdefault("toolUse", {})
        call["input"] = (text(call.get("input")) or "") + piece


def _decode_input(block: dict[str, Any]) -> None:
    """The input of a tool arrives as pieces of JSON text."""
    raw = dig(block, "toolUse", "input")
    decoded = loads_or_none(raw) if isinstance(raw, str) else None
    if decoded is not None:
        block["toolUse"]["input"] = decoded
