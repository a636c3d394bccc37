"""Ollama's own API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detdiag.evidence.adapters.shape import arr, obj, text
from detdiag.evidence.adapters.streams.parts import add_delta, ended


def is_stream(chunks: Sequence[Mapping[str, Any]]) -> bool:
    return any("done" in c for c in chunks)


def merged(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    message: dict[str, Any] = {}
    logprobs: list[Any] = []
    for chunk in chunks:
        for key, value in chunk.items():
            if key == "response":
                body[key] = body.get(key, "") + (text(value) or "")
            elif key == "message":
                add_delta(message, {**obj(value)})
            elif key == "logprobs":
                logprobs += arr(value)
            else:
                body[key] = value
    if message:
        body["message"] = {"role": "assistant", **message}
    if logprobs:
        body["logprobs"] = logprobs
    return ended(body, body.get("done") is True)
