"""OpenAI Responses API (openai-openapi ``Response``): output items instead of choices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.evidence.adapters.bodies.parts import answer_text, positions
from detdiag.evidence.adapters.shape import arr, content_text, dig, obj, text
from detdiag.evidence.observation import Output, Position


def matches(body: Mapping[str, Any]) -> bool:
    if body.get("object") == "response":
        return isinstance(body.get("output"), list)
    return any(
        obj(item).get("type") in ("message", "function_call", "reasoning")
        for item in arr(body.get("output"))
    )


def outputs(body: Mapping[str, Any]) -> list[Output]:
    answers: list[str] = []
    reasoning: list[str] = []
    calls: list[tuple[Any, Any]] = []
    per_token: list[Position] = []
    for item in arr(body.get("output")):
        kind = obj(item).get("type")
        if kind == "message":
            for part in arr(obj(item).get("content")):
                found = text(dig(part, "text")) or text(dig(part, "refusal"))
                answers += [found] if found is not None else []
                per_token += positions(dig(part, "logprobs")) or ()
        elif kind == "reasoning":
            found = content_text(obj(item).get("content")) or content_text(obj(item).get("summary"))
            reasoning += [found] if found else []
        elif isinstance(kind, str) and kind.endswith("_call"):
            calls.append((obj(item).get("name") or kind, obj(item).get("arguments")))
    return [
        Output(
            text=answer_text("".join(answers), calls, "\n".join(reasoning) or None),
            finish_reason=text(dig(body, "incomplete_details", "reason"))
            or text(body.get("status")),
            positions=tuple(per_token) or None,
        )
    ]
