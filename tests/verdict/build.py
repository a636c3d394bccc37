"""Small builders for synthetic observations: what a test says is what the case holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from detdiag.evidence.case import Case
from detdiag.evidence.observation import Candidate, Observation, Output, Position

GREEDY = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}


def observe(
    conditions: Mapping[str, Sequence[Any]],
    answer: Callable[[Mapping[str, Any], int, str], Output | str],
    *,
    repeats: int = 6,
    queries: Sequence[str] = ("q1",),
    request: Mapping[str, Any] | None = GREEDY,
    fixed: Mapping[str, Any] | None = None,
) -> list[Observation]:
    """Full factorial over ``conditions``; ``answer(factors, repeat, query)`` is the output."""
    out = []
    for query in queries:
        for values in itertools.product(*conditions.values()):
            factors = {**(fixed or {}), **dict(zip(conditions, values, strict=True))}
            for repeat in range(repeats):
                given = answer(factors, repeat, query)
                output = Output(text=given) if isinstance(given, str) else given
                out.append(
                    Observation(
                        id=f"o{len(out)}",
                        query=query,
                        request=request,
                        output=output,
                        factors={**factors, "repeat": repeat},
                    )
                )
    return out


def case(observations: Sequence[Observation], **more: Any) -> Case:
    return Case(observations=tuple(observations), **more)


def tokens(*chosen: tuple[str, Mapping[str, float]]) -> Output:
    """An output with log-probabilities: per position the token and its alternatives."""
    positions = []
    for token, top in chosen:
        ordered = sorted(top.items(), key=lambda kv: -kv[1])
        positions.append(
            Position(token, None, top[token], tuple(Candidate(t, None, v) for t, v in ordered))
        )
    return Output(text="".join(t for t, _ in chosen), positions=tuple(positions))
