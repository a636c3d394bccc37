"""Anthropic Messages (and the older Text Completions): no log-probabilities, no token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.evidence.adapters.bodies.parts import answer_text
from detdiag.evidence.adapters.shape import arr, obj, text
from detdiag.evidence.observation import Output


def matches(body: Mapping[str, Any]) -> bool:
    if isinstance(body.get("completion"), str) and "stop_reason" in body:
        return True
    return isinstance(body.get("content"), list) and (
        body.get("type") == "message" or "stop_reason" in body
    )


def outputs(body: Mapping[str, Any]) -> list[Output]:
    reason = text(body.get("stop_reason"))
    if isinstance(body.get("completion"), str):
        return [Output(text=body["completion"], finish_reason=reason)]
    blocks = [obj(block) for block in arr(body.get("content"))]
    answers = [b["text"] for b in blocks if isinstance(b.get("text"), str)]
    thoughts = [b["thinking"] for b in blocks if isinstance(b.get("thinking"), str)]
    calls = [(b.get("name"), b.get("input")) for b in blocks if b.get("type") == "tool_use"]
    answer = answer_text("".join(answers), calls, "\n".join(thoughts) or None)
    return [Output(text=answer, finish_reason=reason)]
