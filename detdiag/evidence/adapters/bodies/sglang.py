"""SGLang's native ``/generate``: ``text``, ``output_ids`` and ``meta_info``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.evidence.adapters.bodies.parts import finish
from detdiag.evidence.adapters.shape import arr, dig, integer, ints, logprob, obj, text
from detdiag.evidence.observation import Candidate, Output, Position


def matches(body: Mapping[str, Any]) -> bool:
    return isinstance(body.get("meta_info"), Mapping) and ("text" in body or "output_ids" in body)


def outputs(body: Mapping[str, Any]) -> list[Output]:
    meta = obj(body.get("meta_info"))
    chosen = arr(meta.get("output_token_logprobs"))
    tops = arr(meta.get("output_top_logprobs"))
    per_token = tuple(
        Position(text(dig(t, 2)), integer(dig(t, 1)), logprob(dig(t, 0)), _ranked(dig(tops, i)))
        for i, t in enumerate(chosen)
    )
    return [
        Output(
            text=text(body.get("text")),
            token_ids=ints(body.get("output_ids")),
            finish_reason=finish(meta.get("finish_reason")),
            positions=per_token or None,
        )
    ]


def _ranked(entries: Any) -> tuple[Candidate, ...]:
    triples = [(logprob(dig(e, 0)), integer(dig(e, 1)), text(dig(e, 2))) for e in arr(entries)]
    found = [Candidate(token, ident, value) for value, ident, token in triples if value is not None]
    return tuple(sorted(found, key=lambda c: -c.logprob))
