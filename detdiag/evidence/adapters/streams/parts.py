"""What the merged streams of several families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from detdiag.evidence.adapters.shape import arr, dig, integer, obj, text

CUT: Final = "detdiag:stream_cut"
"""Key of a merged body whose stream broke off before the server ended it."""


def ended(body: dict[str, Any], whole: object) -> dict[str, Any]:
    """The body, marked where nothing says that its stream was ``whole``."""
    return body if whole else {**body, CUT: True}


def all_ended(body: dict[str, Any], answers: str, reason: str) -> dict[str, Any]:
    """The body, marked where an answer of it never got the reason why it ended."""
    return ended(body, all(obj(one).get(reason) for one in body[answers]))


def add_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Append a piece of a message in the words of OpenAI."""
    for key in ("content", "refusal", "reasoning_content", "reasoning"):
        if isinstance(delta.get(key), str):
            message[key] = (message.get(key) or "") + delta[key]
    for call in arr(delta.get("tool_calls")):
        calls = message.setdefault("tool_calls", [])
        index = integer(obj(call).get("index")) or 0
        while len(calls) <= index < 4096:
            calls.append({"function": {"name": "", "arguments": ""}})
        if index < len(calls):
            function = calls[index]["function"]
            for key in ("name", "arguments"):
                function[key] += text(dig(call, "function", key)) or ""
