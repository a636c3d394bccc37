"""Gemini streamGenerateContent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detdiag.evidence.adapters.shape import arr, dig, integer, obj
from detdiag.evidence.adapters.streams.parts import all_ended


def is_stream(chunks: Sequence[Mapping[str, Any]]) -> bool:
    return any(isinstance(c.get("candidates"), list) for c in chunks)


def merged(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    merged: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        body.update({k: v for k, v in chunk.items() if k != "candidates"})
        for candidate in arr(chunk.get("candidates")):
            index = integer(obj(candidate).get("index")) or 0
            into = merged.setdefault(index, {"content": {"parts": []}})
            into["content"]["parts"] += list(arr(dig(candidate, "content", "parts")))
            into.update({k: v for k, v in obj(candidate).items() if k != "content"})
    body["candidates"] = [merged[index] for index in sorted(merged)]
    return all_ended(body, "candidates", "finishReason")
