"""Replies without their reasoning, for logs in which only some of the replies keep it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_FIELDS: Final = ("reasoning_content", "reasoning", "thinking")
_BLOCKS: Final = ("thinking", "redacted_thinking", "reasoning")


def without_reasoning(body: Any) -> Any:
    """The body with reasoning taken out, and the very same object where it has none."""
    if not isinstance(body, Mapping):
        return body
    out = dict(body)
    for key, value in body.items():
        if key in ("choices", "candidates", "output", "message", "content"):
            out[key] = _cleaned(value)
    if all(out[key] is body[key] for key in body):
        return body
    return out


def _cleaned(value: Any) -> Any:
    if isinstance(value, list):
        kept = [_cleaned(one) for one in value if not _is_reasoning(one)]
        same = len(kept) == len(value) and all(a is b for a, b in zip(kept, value, strict=True))
        return value if same else kept
    if not isinstance(value, Mapping):
        return value
    kept_fields = {
        key: _cleaned(inner) if key in ("message", "content", "parts") else inner
        for key, inner in value.items()
        if not (key in _FIELDS and inner)
    }
    same = len(kept_fields) == len(value) and all(kept_fields[k] is value[k] for k in value)
    return value if same else kept_fields


def _is_reasoning(one: Any) -> bool:
    """A thinking block (Anthropic), a thought (Gemini), reasoning content (Bedrock, OpenAI)."""
    if not isinstance(one, Mapping):
        return False
    return one.get("type") in _BLOCKS or one.get("thought") is True or "reasoningContent" in one
