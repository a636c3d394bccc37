"""Pieces that several response shapes share: tool calls, alternatives, the text to compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from detdiag.evidence.adapters.shape import arr, dig, first, integer, logprob, obj, text
from detdiag.evidence.observation import Candidate, Position


def answer_text(
    answer: str | None, calls: Iterable[tuple[Any, Any]] = (), reasoning: str | None = None
) -> str | None:
    """What is compared between two answers: reasoning, answer, then one line per tool call.

    Call ids are random on every server, so a call is its name and its arguments as sent.
    """
    parts = [part for part in (reasoning, answer) if part]
    parts += [call_line(name, arguments) for name, arguments in calls]
    if parts:
        return "\n".join(parts)
    return answer


def call_line(name: Any, arguments: Any) -> str:
    if isinstance(arguments, str):
        shown = arguments
    else:
        try:
            shown = orjson.dumps(arguments).decode()
        except (TypeError, ValueError, RecursionError):
            shown = repr(arguments)
    return f"{name}({shown})"


def openai_calls(value: Any) -> list[tuple[Any, Any]]:
    """Name and arguments of each entry of ``tool_calls``, function wrapper or not."""
    found = []
    for call in arr(value):
        function = obj(obj(call).get("function")) or obj(call)
        if function:
            found.append((function.get("name"), function.get("arguments")))
    return found


def token_text(entry: Mapping[str, Any]) -> str | None:
    """The token as text; as escaped bytes where it is not valid UTF-8 on its own."""
    token = text(first(entry, "token", "text"))
    raw = arr(entry.get("bytes"))
    if token is None or "\ufffd" not in token or not raw:
        return token
    try:
        data = bytes(raw)
    except (TypeError, ValueError):
        return token
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{b:02x}" for b in data)


def token_id(entry: Mapping[str, Any]) -> int | None:
    """An id field, or vLLM's ``token_id:123`` spelling of a token
    (``return_tokens_as_token_ids``)."""
    found = integer(first(entry, "id", "token_id"))
    token = entry.get("token")
    if found is None and isinstance(token, str) and token.startswith("token_id:"):
        found = integer(token.removeprefix("token_id:"))
    return found


def candidates(entries: Any) -> tuple[Candidate, ...]:
    """Alternatives with a value, best first; order of equal values as sent."""
    found = []
    for entry in arr(entries):
        value = logprob(first(entry, "logprob", "logProbability"))
        if value is not None:
            found.append(Candidate(token_text(entry), token_id(entry), value))
    return tuple(sorted(found, key=lambda c: -c.logprob))


def positions(entries: Any, alternatives: str = "top_logprobs") -> tuple[Position, ...] | None:
    """Per-token entries ``{token, logprob, bytes, top_logprobs}``; None when there are none."""
    found = tuple(
        Position(
            token_text(entry),
            token_id(entry),
            logprob(entry.get("logprob")),
            candidates(entry.get(alternatives)),
        )
        for entry in arr(entries)
        if isinstance(entry, Mapping)
    )
    return found or None


def with_ids(
    found: tuple[Position, ...] | None, ids: tuple[int, ...] | None
) -> tuple[Position, ...] | None:
    """Put token ids on positions where both channels have the same length."""
    if found is None or ids is None or len(found) != len(ids):
        return found
    return tuple(
        Position(p.token, p.id if p.id is not None else i, p.logprob, p.top)
        for p, i in zip(found, ids, strict=True)
    )


def reasoning_of(message: Any) -> str | None:
    return text(first(message, "reasoning_content", "reasoning", "thinking"))


def finish(value: Any) -> str | None:
    """A finish reason as text; SGLang sends an object with a type."""
    return text(value) or text(dig(value, "type"))
