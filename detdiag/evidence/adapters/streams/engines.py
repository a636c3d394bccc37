"""The plain generate routes of engines: llama.cpp, SGLang and TGI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detdiag.evidence.adapters.shape import obj, text


def is_llamacpp(chunks: Sequence[Mapping[str, Any]]) -> bool:
    return any(isinstance(c.get("content"), str) and "stop" in c for c in chunks)


def llamacpp(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {**chunks[-1], "content": "".join(text(c.get("content")) or "" for c in chunks)}


def is_sglang(chunks: Sequence[Mapping[str, Any]]) -> bool:
    return "meta_info" in chunks[0]


def sglang(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Every chunk holds the whole text so far."""
    return {**chunks[-1]}


def is_tgi(chunks: Sequence[Mapping[str, Any]]) -> bool:
    return isinstance(chunks[-1].get("generated_text"), str)


def tgi(chunks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    tokens = [chunk["token"] for chunk in chunks if isinstance(chunk.get("token"), Mapping)]
    last = chunks[-1]
    return {
        "generated_text": last["generated_text"],
        "details": {**obj(last.get("details")), "tokens": tokens},
    }
