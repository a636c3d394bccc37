"""Anthropic Messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detdiag.evidence.adapters.shape import integer, loads_or_none, obj, text
from detdiag.evidence.adapters.streams.parts import ended


def is_stream(chunks: Sequence[Mapping[str, Any]]) -> bool:
    return any(c.get("type") == "message_start" for c in chunks)


def merged(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        kind = chunk.get("type")
        if kind == "message_start":
            body = {**obj(chunk.get("message"))}
        elif kind == "content_block_start":
            blocks[integer(chunk.get("index")) or 0] = {**obj(chunk.get("content_block"))}
        elif kind == "content_block_delta":
            block = blocks.setdefault(integer(chunk.get("index")) or 0, {"type": "text"})
            _add_block(block, obj(chunk.get("delta")))
        elif kind == "message_delta":
            body.update(obj(chunk.get("delta")))
    for block in blocks.values():
        if "partial_json" in block:
            raw = block.pop("partial_json")
            decoded = loads_or_none(raw)
            block["input"] = raw if decoded is None else decoded
    body["content"] = [blocks[index] for index in sorted(blocks)]
    return ended(body, body.get("stop_reason"))


def _add_block(block: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for key in ("text", "thinking", "partial_json"):
        if isinstance(delta.get(key), str):
            block[key] = (text(block.get(key)) or "") + delta[key]
