"""Response bodies as vLLM writes them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

from tests.stub_server.engine import Engine, Reply, Step
from tests.stub_server.model import word

_NUMBERS = itertools.count(1)


class Unsupported(Exception):
    """A request that this server refuses, with its HTTP status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def chat_body(engine: Engine, model: str, body: Mapping[str, Any], replica: int) -> dict[str, Any]:
    count = int(body.get("top_logprobs") or 0) if body.get("logprobs") else None
    count = _allowed(engine, count)
    replies = _replies(engine, body, replica)
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": reply.text},
            "logprobs": None
            if count is None
            else {"content": [_entry(engine, step, count) for step in reply.steps]},
            "finish_reason": reply.finish_reason,
            **_ids(reply, body),
        }
        for index, reply in enumerate(replies)
    ]
    return _wrapped(engine, model, "chat.completion", choices, replies, body, replica)


def completion_body(
    engine: Engine, model: str, body: Mapping[str, Any], replica: int
) -> dict[str, Any]:
    asked = body.get("logprobs")
    count = _allowed(engine, None if asked is None else int(asked))
    replies = _replies(engine, body, replica)
    choices = [
        {
            "index": index,
            "text": reply.text,
            "logprobs": None if count is None else _legacy(engine, reply, count),
            "finish_reason": reply.finish_reason,
            **_ids(reply, body),
        }
        for index, reply in enumerate(replies)
    ]
    return _wrapped(engine, model, "text_completion", choices, replies, body, replica)


def _replies(engine: Engine, body: Mapping[str, Any], replica: int) -> list[Reply]:
    return [engine.generate(body, replica) for _ in range(int(body.get("n") or 1))]


def _allowed(engine: Engine, count: int | None) -> int | None:
    behaviour = engine.behaviour
    if count is None or behaviour.logprobs == "ignored":
        return None
    if behaviour.logprobs == "rejected":
        raise Unsupported("Unexpected keys in the request: {'logprobs', 'top_logprobs'}", 422)
    if count > behaviour.max_logprobs:
        raise Unsupported(
            f"Requested sample logprobs of {count}, which is greater than max allowed: "
            f"{behaviour.max_logprobs}"
        )
    return count


def _ids(reply: Reply, body: Mapping[str, Any]) -> dict[str, Any]:
    if not body.get("return_token_ids"):
        return {}
    return {"token_ids": [step.token for step in reply.steps]}


def _number(engine: Engine, value: float) -> float:
    return round(value, 4) if engine.behaviour.logprobs == "rounded" else value


def _entry(engine: Engine, step: Step, count: int) -> dict[str, Any]:
    key = (count, engine.behaviour.logprobs == "rounded", step.token)
    if key not in step.row.written:
        step.row.written[key] = _written(engine, step, count)
    return step.row.written[key]


def _written(engine: Engine, step: Step, count: int) -> dict[str, Any]:
    def one(token: int) -> dict[str, Any]:
        text = word(token)
        value = _number(engine, step.row.logprobs[token])
        return {"token": text, "logprob": value, "bytes": list(text.encode())}

    return {**one(step.token), "top_logprobs": [one(i) for i in step.row.order[:count]]}


def _legacy(engine: Engine, reply: Reply, count: int) -> dict[str, Any]:
    def top(step: Step) -> dict[str, float]:
        ids = dict.fromkeys([*step.row.order[:count], step.token])
        return {word(i): _number(engine, step.row.logprobs[i]) for i in ids}

    return {
        "tokens": [word(step.token) for step in reply.steps],
        "token_logprobs": [_number(engine, s.row.logprobs[s.token]) for s in reply.steps],
        "top_logprobs": [top(step) for step in reply.steps],
        "text_offset": [0] * len(reply.steps),
    }


def _wrapped(
    engine: Engine,
    model: str,
    kind: str,
    choices: list[dict[str, Any]],
    replies: list[Reply],
    body: Mapping[str, Any],
    replica: int,
) -> dict[str, Any]:
    behaviour = engine.behaviour
    prompt = replies[0].prompt
    completion = sum(len(reply.steps) for reply in replies)
    usage: dict[str, Any] = {
        "prompt_tokens": len(prompt),
        "completion_tokens": completion,
        "total_tokens": len(prompt) + completion,
    }
    if behaviour.prefix_cache and behaviour.report_cached:
        usage["prompt_tokens_details"] = {"cached_tokens": replies[0].cached}
    out: dict[str, Any] = {
        "id": f"cmpl-{next(_NUMBERS):08x}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": usage,
        "system_fingerprint": f"{behaviour.fingerprint}-{replica}"
        if behaviour.replica_fingerprints
        else behaviour.fingerprint,
    }
    if body.get("return_token_ids"):
        out["prompt_token_ids"] = list(prompt)
    return out
