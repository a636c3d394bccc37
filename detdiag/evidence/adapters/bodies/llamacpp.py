"""llama.cpp server ``/completion`` (tools/server/README.md: ``tokens``,
``completion_probabilities``, ``generation_settings``, ``timings``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.evidence.adapters.bodies.parts import positions, with_ids
from detdiag.evidence.adapters.shape import arr, dig, first, ints, text
from detdiag.evidence.observation import Output, Position


def matches(body: Mapping[str, Any]) -> bool:
    return isinstance(body.get("content"), str) and any(
        key in body
        for key in ("generation_settings", "tokens_evaluated", "tokens_predicted", "stop_type")
    )


def outputs(body: Mapping[str, Any]) -> list[Output]:
    ids = ints(body.get("tokens"))
    return [
        Output(
            text=text(body.get("content")),
            token_ids=ids,
            finish_reason=text(body.get("stop_type")) or _old_stop(body),
            positions=with_ids(_positions(body.get("completion_probabilities")), ids),
        )
    ]


def _positions(entries: Any) -> tuple[Position, ...] | None:
    """Log-probabilities before sampling. Probabilities (older builds, ``post_sampling_probs``)
    are not log-probabilities of the model: tokens are kept, values are not."""
    if any(isinstance(dig(e, "logprob"), (int, float)) for e in arr(entries)):
        return positions(entries)
    found = [
        Position(text(first(e, "token", "content")), None, None)
        for e in arr(entries)
        if isinstance(e, Mapping)
    ]
    return tuple(found) or None


def _old_stop(body: Mapping[str, Any]) -> str | None:
    names = {"stopped_eos": "eos", "stopped_limit": "limit", "stopped_word": "word"}
    return next((reason for key, reason in names.items() if body.get(key) is True), None)
