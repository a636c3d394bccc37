"""Streamed replies put together again: server-sent events and JSON lines to one body."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from detdiag.evidence.adapters.shape import arr, dig, integer, loads_or_none, obj, text

CUT: Final = "detdiag:stream_cut"
"""Key of a merged body whose stream broke off before the server ended it."""

_CHUNK_FIELDS: Final = (("candidates", list), ("delta", Mapping), ("done", bool))


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
    for event in chunks:
        if event.get("type") in ("response.completed", "response.incomplete"):
            return event.get("response")
    head = chunks[0]
    if any(isinstance(c.get("choices"), list) for c in chunks):
        return _checked(_openai(chunks), "choices", "finish_reason")
    if any(c.get("type") == "message_start" for c in chunks):
        body = _anthropic(chunks)
        return body if body.get("stop_reason") else {**body, CUT: True}
    if any(isinstance(c.get("candidates"), list) for c in chunks):
        return _checked(_gemini(chunks), "candidates", "finishReason")
    if any("done" in c for c in chunks):
        body = _ollama(chunks)
        return body if body.get("done") is True else {**body, CUT: True}
    if any(isinstance(c.get("content"), str) and "stop" in c for c in chunks):
        return {**chunks[-1], "content": "".join(text(c.get("content")) or "" for c in chunks)}
    if "meta_info" in head:
        return chunks[-1]
    if isinstance(chunks[-1].get("generated_text"), str):
        return _tgi(chunks)
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
    streamed = isinstance(kind, str) and kind.startswith(("message_start", "response."))
    return streamed or isinstance(dig(one, "choices", 0, "delta"), Mapping)


def _checked(body: dict[str, Any], answers: str, reason: str) -> dict[str, Any]:
    """The body, marked where an answer of it never got the reason why it ended."""
    whole = all(obj(one).get(reason) for one in body[answers])
    return body if whole else {**body, CUT: True}


def _openai(chunks: list[Mapping[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        body.update({k: v for k, v in chunk.items() if k != "choices" and v is not None})
        for piece in arr(chunk.get("choices")):
            index = integer(obj(piece).get("index")) or 0
            _add_choice(choices.setdefault(index, {"index": index}), obj(piece))
    body["choices"] = [choices[index] for index in sorted(choices)]
    return body


def _add_choice(choice: dict[str, Any], piece: Mapping[str, Any]) -> None:
    if isinstance(piece.get("text"), str):
        choice["text"] = choice.get("text", "") + piece["text"]
    delta = piece.get("delta") if "delta" in piece else piece.get("message")
    if isinstance(delta, Mapping):
        _add_delta(choice.setdefault("message", {"role": "assistant"}), delta)
    if piece.get("finish_reason") is not None:
        choice["finish_reason"] = piece["finish_reason"]
    for key in ("token_ids",):
        if isinstance(piece.get(key), list):
            choice[key] = choice.get(key, []) + piece[key]
    for key, value in obj(piece.get("logprobs")).items():
        if isinstance(value, list):
            logprobs = choice.setdefault("logprobs", {})
            logprobs[key] = logprobs.get(key, []) + value


def _add_delta(message: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for key in ("content", "refusal", "reasoning_content", "reasoning"):
        if isinstance(delta.get(key), str):
            message[key] = (message.get(key) or "") + delta[key]
    for call in arr(delta.get("tool_calls")):
        calls = message.setdefault("tool_calls", [])
        index = integer(obj(call).get("index")) or 0
        while len(calls) <= index < 4096:
            calls.append({"function": {"name": "", "arguments": ""}})
        if index < len(calls):
            function = calls[index]["function"]
            for key in ("name", "arguments"):
                function[key] += text(dig(call, "function", key)) or ""


def _anthropic(chunks: list[Mapping[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        kind = chunk.get("type")
        if kind == "message_start":
            body = {**obj(chunk.get("message"))}
        elif kind == "content_block_start":
            blocks[integer(chunk.get("index")) or 0] = {**obj(chunk.get("content_block"))}
        elif kind == "content_block_delta":
            block = blocks.setdefault(integer(chunk.get("index")) or 0, {"type": "text"})
            _add_block(block, obj(chunk.get("delta")))
        elif kind == "message_delta":
            body.update(obj(chunk.get("delta")))
    for block in blocks.values():
        if "partial_json" in block:
            raw = block.pop("partial_json")
            decoded = loads_or_none(raw)
            block["input"] = raw if decoded is None else decoded
    body["content"] = [blocks[index] for index in sorted(blocks)]
    return body


def _add_block(block: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for key in ("text", "thinking", "partial_json"):
        if isinstance(delta.get(key), str):
            block[key] = (text(block.get(key)) or "") + delta[key]


def _gemini(chunks: list[Mapping[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    merged: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        body.update({k: v for k, v in chunk.items() if k != "candidates"})
        for candidate in arr(chunk.get("candidates")):
            index = integer(obj(candidate).get("index")) or 0
            into = merged.setdefault(index, {"content": {"parts": []}})
            into["content"]["parts"] += list(arr(dig(candidate, "content", "parts")))
            into.update({k: v for k, v in obj(candidate).items() if k != "content"})
    body["candidates"] = [merged[index] for index in sorted(merged)]
    return body


def _ollama(chunks: list[Mapping[str, Any]]) -> dict[str, Any]:
    body: dict[str, Any] = {}
    message: dict[str, Any] = {}
    logprobs: list[Any] = []
    for chunk in chunks:
        for key, value in chunk.items():
            if key == "response":
                body[key] = body.get(key, "") + (text(value) or "")
            elif key == "message":
                _add_delta(message, {**obj(value)})
            elif key == "logprobs":
                logprobs += arr(value)
            else:
                body[key] = value
    if message:
        body["message"] = {"role": "assistant", **message}
    if logprobs:
        body["logprobs"] = logprobs
    return body


def _tgi(chunks: list[Mapping[str, Any]]) -> dict[str, Any]:
    tokens = [chunk["token"] for chunk in chunks if isinstance(chunk.get("token"), Mapping)]
    last = chunks[-1]
    return {
        "generated_text": last["generated_text"],
        "details": {**obj(last.get("details")), "tokens": tokens},
    }
