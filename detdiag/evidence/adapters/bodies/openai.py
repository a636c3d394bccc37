"""OpenAI chat completions and legacy completions, with the extras of vLLM and its kin.

Shapes: openai-openapi ``CreateChatCompletionResponse`` and ``CreateCompletionResponse``; vLLM
adds ``token_ids`` to a choice and ``prompt_token_ids`` to the body (``return_token_ids``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.evidence.adapters.bodies.parts import (
    answer_text,
    finish,
    openai_calls,
    positions,
    reasoning_of,
    with_ids,
)
from detdiag.evidence.adapters.shape import (
    arr,
    content_text,
    dig,
    integer,
    ints,
    logprob,
    obj,
    text,
)
from detdiag.evidence.observation import Candidate, Output, Position


def matches(body: Mapping[str, Any]) -> bool:
    return any(isinstance(c, Mapping) and ("message" in c or "text" in c) for c in _choices(body))


def outputs(body: Mapping[str, Any]) -> list[Output]:
    choices = [c for c in _choices(body) if isinstance(c, Mapping)]
    choices.sort(key=lambda c: integer(c.get("index")) or 0)
    return [_chat(c) if "message" in c else _legacy(c, body) for c in choices]


def _choices(body: Mapping[str, Any]) -> Any:
    # DashScope's native body holds the choices one level down.
    return arr(body.get("choices")) or arr(dig(body, "output", "choices"))


def _chat(choice: Mapping[str, Any]) -> Output:
    message = obj(choice.get("message"))
    answer = content_text(message.get("content"))
    if answer is None:
        answer = text(message.get("refusal"))
    calls = openai_calls(message.get("tool_calls"))
    legacy = message.get("function_call")
    if isinstance(legacy, Mapping):
        calls.append((legacy.get("name"), legacy.get("arguments")))
    ids = ints(choice.get("token_ids"))
    logprobs = obj(choice.get("logprobs"))
    per_token = positions(logprobs.get("content")) or _parallel(logprobs)
    return Output(
        text=answer_text(answer, calls, reasoning_of(message)),
        token_ids=ids,
        finish_reason=finish(choice.get("finish_reason")),
        positions=with_ids(per_token, ids),
    )


def _legacy(choice: Mapping[str, Any], body: Mapping[str, Any]) -> Output:
    ids = ints(choice.get("token_ids"))
    logprobs = obj(choice.get("logprobs"))
    per_token = positions(logprobs.get("content")) or _without_echo(_parallel(logprobs), body)
    return Output(
        text=text(choice.get("text")),
        token_ids=ids,
        finish_reason=finish(choice.get("finish_reason")),
        positions=with_ids(per_token, ids),
    )


def _parallel(logprobs: Mapping[str, Any]) -> tuple[Position, ...] | None:
    """The legacy layout: ``tokens``, ``token_logprobs``, ``top_logprobs`` side by side."""
    tokens, chosen = arr(logprobs.get("tokens")), arr(logprobs.get("token_logprobs"))
    if not tokens or len(chosen) != len(tokens):
        return None
    tops = arr(logprobs.get("top_logprobs"))
    return tuple(
        Position(
            text(t), _spelled_id(t), logprob(v), _alternatives(tops[i] if i < len(tops) else None)
        )
        for i, (t, v) in enumerate(zip(tokens, chosen, strict=True))
    )


def _alternatives(value: Any) -> tuple[Candidate, ...]:
    pairs = [(token, logprob(v)) for token, v in obj(value).items()]
    found = [Candidate(token, _spelled_id(token), v) for token, v in pairs if v is not None]
    return tuple(sorted(found, key=lambda c: -c.logprob))


def _spelled_id(token: Any) -> int | None:
    if isinstance(token, str) and token.startswith("token_id:"):
        return integer(token.removeprefix("token_id:"))
    return None


def _without_echo(
    found: tuple[Position, ...] | None, body: Mapping[str, Any]
) -> tuple[Position, ...] | None:
    """``echo`` puts prompt tokens first (the very first has no log-probability). A prompt token
    is nobody's arg-max, so keep generated tokens only, or nothing if their count is unknown."""
    if not found or found[0].logprob is not None or not found[1:]:
        return found
    generated = integer(dig(body, "usage", "completion_tokens"))
    if generated is None or not 0 < generated < len(found):
        return None
    return found[-generated:]
