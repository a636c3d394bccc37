"""Observations for the tests of the score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detdiag.evidence.observation import Observation, Output
from detdiag.score.sample import Run

_NUMBERS = iter(range(10**9))


def observed(
    query: str, text: str | None, *, tokens: Sequence[int] | None = None, **more: Any
) -> Observation:
    """One observation; ``burst``, ``sent_s``, ``digests``, ``finish`` and factors by name."""
    context = {k: more.pop(k) for k in ("burst", "sent_s", "round", "arm") if k in more}
    response: dict[str, Any] = dict(more.pop("response", {}))
    if context:
        response["context"] = {**response.get("context", {}), **context}
    output = Output(
        text=text,
        token_ids=None if tokens is None else tuple(tokens),
        finish_reason=more.pop("finish", None),
        logit_digests=more.pop("digests", None),
    )
    return Observation(
        id=f"o{next(_NUMBERS)}",
        query=query,
        output=output,
        role=more.pop("role", "trial"),
        response=response or None,
        factors=more,
    )


def solo(outputs: Mapping[str, Sequence[str]]) -> list[Observation]:
    """Solo runs: texts by prompt, in order."""
    return [
        observed(query, text, batch_size=1, repeat=i)
        for query, texts in outputs.items()
        for i, text in enumerate(texts)
    ]


def run(output: str, burst: str, **fields: Any) -> Run:
    """One run of the comparison."""
    given = {
        "query": "q",
        "condition": "solo",
        "text": output,
        "steps": tuple(output),
        "finish_reason": "stop",
        "digests": None,
        "channel": "",
        **fields,
    }
    return Run(output=output, burst=burst, **given)
