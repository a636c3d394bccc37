"""Gemini ``generateContent`` (googleapis/python-genai ``GenerateContentResponse``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.evidence.adapters.bodies.parts import answer_text
from detdiag.evidence.adapters.shape import arr, dig, first, integer, logprob, obj, text
from detdiag.evidence.observation import Candidate, Output, Position


def matches(body: Mapping[str, Any]) -> bool:
    return any("content" in obj(c) or "finishReason" in obj(c) for c in arr(body.get("candidates")))


def outputs(body: Mapping[str, Any]) -> list[Output]:
    return [_candidate(obj(c)) for c in arr(body.get("candidates"))]


def _candidate(candidate: Mapping[str, Any]) -> Output:
    parts = [obj(part) for part in arr(dig(candidate, "content", "parts"))]
    answers = [p["text"] for p in parts if isinstance(p.get("text"), str) and not p.get("thought")]
    thoughts = [p["text"] for p in parts if isinstance(p.get("text"), str) and p.get("thought")]
    calls = [
        (call.get("name"), call.get("args"))
        for call in (obj(first(p, "functionCall", "function_call")) for p in parts)
        if call
    ]
    found = obj(first(candidate, "logprobsResult", "logprobs_result"))
    return Output(
        text=answer_text("".join(answers), calls, "\n".join(thoughts) or None),
        finish_reason=text(first(candidate, "finishReason", "finish_reason")),
        positions=_positions(found),
    )


def _positions(found: Mapping[str, Any]) -> tuple[Position, ...] | None:
    tops = arr(first(found, "topCandidates", "top_candidates"))
    out = []
    for index, chosen in enumerate(arr(first(found, "chosenCandidates", "chosen_candidates"))):
        alternatives = [_one(c) for c in arr(dig(tops, index, "candidates"))]
        ranked = sorted((c for c in alternatives if c is not None), key=lambda c: -c.logprob)
        token, ident, value = _fields(obj(chosen))
        out.append(Position(token, ident, value, tuple(ranked)))
    return tuple(out) or None


def _one(value: Any) -> Candidate | None:
    token, ident, found = _fields(obj(value))
    return None if found is None else Candidate(token, ident, found)


def _fields(value: Mapping[str, Any]) -> tuple[str | None, int | None, float | None]:
    return (
        text(value.get("token")),
        integer(first(value, "tokenId", "token_id")),
        logprob(first(value, "logProbability", "log_probability")),
    )
