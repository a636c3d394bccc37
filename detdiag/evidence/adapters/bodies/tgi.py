"""Text Generation Inference ``/generate`` (``generated_text``, ``details``) and the plain
Hugging Face inference body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.evidence.adapters.bodies.parts import candidates
from detdiag.evidence.adapters.shape import arr, dig, integer, logprob, obj, text
from detdiag.evidence.observation import Output, Position


def matches(body: Mapping[str, Any]) -> bool:
    return isinstance(body.get("generated_text"), str)


def outputs(body: Mapping[str, Any]) -> list[Output]:
    details = obj(body.get("details"))
    tokens = [obj(t) for t in arr(details.get("tokens"))]
    ids = [integer(t.get("id")) for t in tokens]
    tops = arr(details.get("top_tokens"))
    per_token = tuple(
        Position(text(t.get("text")), i, logprob(t.get("logprob")), candidates(dig(tops, index)))
        for index, (t, i) in enumerate(zip(tokens, ids, strict=True))
    )
    return [
        Output(
            text=body["generated_text"],
            token_ids=tuple(i for i in ids if i is not None) if ids and None not in ids else None,
            finish_reason=text(details.get("finish_reason")),
            positions=per_token or None,
        )
    ]
