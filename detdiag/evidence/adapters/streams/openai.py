"""OpenAI chat, completions and Responses, and servers that speak like them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detdiag.evidence.adapters.shape import arr, integer, obj
from detdiag.evidence.adapters.streams.parts import add_delta, all_ended

_WHOLE = ("response.completed", "response.incomplete")


def is_stream(chunks: Sequence[Mapping[str, Any]]) -> bool:
    return any(isinstance(c.get("choices"), list) for c in chunks)


def is_responses(chunks: Sequence[Mapping[str, Any]]) -> bool:
    return any(c.get("type") in _WHOLE for c in chunks)


def response(chunks: Sequence[Mapping[str, Any]]) -> Any:
    """The last event of the Responses API carries the whole response."""
    return next(c.get("response") for c in chunks if c.get("type") in _WHOLE)


def merged(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        body.update({k: v for k, v in chunk.items() if k != "choices" and v is not None})
        for piece in arr(chunk.get("choices")):
            index = integer(obj(piece).get("index")) or 0
            _add_choice(choices.setdefault(index, {"index": index}), obj(piece))
    body["choices"] = [choices[index] for index in sorted(choices)]
    return all_ended(body, "choices", "finish_reason")


def _add_choice(choice: dict[str, Any], piece: Mapping[str, Any]) -> None:
    if isinstance(piece.get("text"), str):
        choice["text"] = choice.get("text", "") + piece["text"]
    delta = piece.get("delta") if "delta" in piece else piece.get("message")
    if isinstance(delta, Mapping):
        add_delta(choice.setdefault("message", {"role": "assistant"}), delta)
    if piece.get("finish_reason") is not None:
        choice["finish_reason"] = piece["finish_reason"]
    for key in ("token_ids",):
        if isinstance(piece.get(key), list):
            choice[key] = choice.get(key, []) + piece[key]
    for key, value in obj(piece.get("logprobs")).items():
        if isinstance(value, list):
            logprobs = choice.setdefault("logprobs", {})
            logprobs[key] = logprobs.get(key, []) + value
