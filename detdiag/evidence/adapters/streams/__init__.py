"""Streamed replies put together again: server-sent events and JSON lines to one body.

One module a family; each says whether chunks are its own and what one body they make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from detdiag.evidence.adapters.shape import dig, loads_or_none, obj
from detdiag.evidence.adapters.streams import (
    anthropic,
    cohere,
    converse,
    engines,
    gemini,
    ollama,
    openai,
)
from detdiag.evidence.adapters.streams.parts import CUT

__all__ = ["CUT", "decode_body", "is_chunk_list", "merge", "sse_events"]

Chunks = Sequence[Mapping[str, Any]]
_FAMILIES: Final[tuple[tuple[Callable[[Chunks], bool], Callable[[Chunks], Any]], ...]] = (
    (openai.is_responses, openai.response),
    (openai.is_stream, openai.merged),
    (anthropic.is_stream, anthropic.merged),
    (gemini.is_stream, gemini.merged),
    (cohere.is_stream, cohere.merged),
    (cohere.is_v1, cohere.v1),
    (converse.is_stream, converse.merged),
    (ollama.is_stream, ollama.merged),
    (engines.is_llamacpp, engines.llamacpp),
    (engines.is_sglang, engines.sglang),
    (engines.is_tgi, engines.tgi),
)
_CHUNK_FIELDS: Final = (
    ("candidates", list),
    ("delta", Mapping),
    ("done", bool),
    *((event, Mapping) for event in converse.EVENTS),
)
_CHUNK_TYPES: Final = ("message_start", "message-start", "response.")


def decode_body(raw: str | None) -> Any:
    """A response body from its text: JSON, an event stream, or JSON lines.

    Text that is none of these is None: an HTML error page is not an answer.
    """
    if raw is None or not raw.strip():
        return None
    whole = loads_or_none(raw)
    if whole is not None:
        return merge(list(whole)) if is_chunk_list(whole) else whole
    events = list(sse_events(raw))
    if not events:
        lines = [loads_or_none(line) for line in raw.splitlines() if line.strip()]
        events = lines if lines and all(isinstance(v, Mapping) for v in lines) else []
    return merge(events) if events else None


def sse_events(raw: str) -> Iterator[Any]:
    """Decoded ``data:`` payloads of an event stream, ``[DONE]`` and comments left out."""
    data: list[str] = []
    for line in [*raw.replace("\r\n", "\n").replace("\r", "\n").split("\n"), ""]:
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            payload = loads_or_none("\n".join(data))
            if payload is not None:
                yield payload
            data = []


def merge(events: list[Any]) -> Any:
    """One body from the chunks of a stream; None for an unknown stream."""
    chunks = [event for event in events if isinstance(event, Mapping)]
    if not chunks:
        return None
    for is_mine, merged in _FAMILIES:
        if is_mine(chunks):
            return merged(chunks)
    return chunks[0] if len(chunks) == 1 else None


def is_chunk_list(value: Any) -> bool:
    """Whether an array holds the chunks of one streamed reply, and not several replies."""
    if not isinstance(value, list) or len(value) < 2:
        return False
    return any(_is_chunk(obj(one)) for one in value)


def _is_chunk(one: Mapping[str, Any]) -> bool:
    if any(isinstance(one.get(key), kind) for key, kind in _CHUNK_FIELDS):
        return True
    kind = one.get("type")
    streamed = isinstance(kind, str) and kind.startswith(_CHUNK_TYPES)
    streamed = streamed or one.get("event_type") in ("stream-start", "text-generation")
    return streamed or isinstance(dig(one, "choices", 0, "delta"), Mapping)
