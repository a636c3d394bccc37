"""Ollama's own API: ``/api/chat`` and ``/api/generate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.evidence.adapters.bodies.parts import (
    answer_text,
    openai_calls,
    positions,
    reasoning_of,
)
from detdiag.evidence.adapters.shape import obj, text
from detdiag.evidence.observation import Output


def matches(body: Mapping[str, Any]) -> bool:
    if not ("done" in body or "eval_count" in body or "total_duration" in body):
        return False
    return isinstance(body.get("message"), Mapping) or isinstance(body.get("response"), str)


def outputs(body: Mapping[str, Any]) -> list[Output]:
    message = obj(body.get("message"))
    answer = text(message.get("content")) if message else text(body.get("response"))
    return [
        Output(
            text=answer_text(
                answer, openai_calls(message.get("tool_calls")), reasoning_of(message or body)
            ),
            finish_reason=text(body.get("done_reason")),
            positions=positions(body.get("logprobs")),
        )
    ]
