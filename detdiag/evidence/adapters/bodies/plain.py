"""What hand-written logs keep of a reply: a message, or one field with the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from detdiag.evidence.adapters.bodies.parts import answer_text, openai_calls, reasoning_of
from detdiag.evidence.adapters.shape import content_text, first, ints, text
from detdiag.evidence.observation import Output

TEXT_FIELDS: Final = (
    "text",
    "output_text",
    "content",
    "completion",
    "answer",
    "response",
    "output",
)


def matches(body: Mapping[str, Any]) -> bool:
    if body.get("role") in ("assistant", "model"):
        return "content" in body or "tool_calls" in body
    return isinstance(first(body, *TEXT_FIELDS), str)


def outputs(body: Mapping[str, Any]) -> list[Output]:
    answer = content_text(first(body, *TEXT_FIELDS))
    return [
        Output(
            text=answer_text(answer, openai_calls(body.get("tool_calls")), reasoning_of(body)),
            token_ids=ints(body.get("token_ids")),
            finish_reason=text(first(body, "finish_reason", "stop_reason")),
        )
    ]
