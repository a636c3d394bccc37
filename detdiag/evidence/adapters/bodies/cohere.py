"""Cohere: Chat v2, Chat v1 and Generate (cohere-python types)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.evidence.adapters.bodies.parts import answer_text, openai_calls
from detdiag.evidence.adapters.shape import arr, content_text, dig, integer, logprob, obj, text
from detdiag.evidence.observation import Output, Position


def matches(body: Mapping[str, Any]) -> bool:
    if isinstance(dig(body, "generations", 0, "text"), str):
        return True
    if isinstance(body.get("message"), Mapping) and "finish_reason" in body:
        return True
    return isinstance(body.get("text"), str) and ("generation_id" in body or "chat_history" in body)


def outputs(body: Mapping[str, Any]) -> list[Output]:
    if isinstance(body.get("generations"), list):
        return [
            Output(text=text(dig(g, "text")), finish_reason=text(dig(g, "finish_reason")))
            for g in body["generations"]
        ]
    reason = text(body.get("finish_reason"))
    message = obj(body.get("message"))
    if not message:
        calls = [(dig(c, "name"), dig(c, "parameters")) for c in arr(body.get("tool_calls"))]
        return [Output(text=answer_text(text(body.get("text")), calls), finish_reason=reason)]
    answer = answer_text(
        content_text(message.get("content")), openai_calls(message.get("tool_calls"))
    )
    return [Output(text=answer, finish_reason=reason, positions=_positions(body.get("logprobs")))]


def _positions(value: Any) -> tuple[Position, ...] | None:
    """Entries ``{text, token_ids, logprobs}``: a text chunk can span several tokens, and then
    the text belongs to no single one."""
    found = []
    for entry in arr(value):
        ids, values = arr(dig(entry, "token_ids")), arr(dig(entry, "logprobs"))
        chunk = text(dig(entry, "text")) if len(ids) == 1 else None
        if len(ids) != len(values):
            return None
        found += [Position(chunk, integer(i), logprob(v)) for i, v in zip(ids, values, strict=True)]
    return tuple(found) or None
