"""From exchanges to observations: what one record cannot know and the whole file can.

Replica labels become one factor, overlap of intervals becomes ``concurrency``, replies of a
response cache are taken out, and channels that nothing carries are named.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from detdiag.evidence.adapters import bodies
from detdiag.evidence.adapters.aliases import merge_aliases, replica_names
from detdiag.evidence.adapters.bodies.reasoning import without_reasoning
from detdiag.evidence.adapters.factors import prompt_token_ids, response_factors
from detdiag.evidence.adapters.interface import Adapted, Broken, Exchange
from detdiag.evidence.adapters.lacks import absent_channels
from detdiag.evidence.adapters.left_out import counted, mark, redacted
from detdiag.evidence.adapters.overlap import peak_overlap
from detdiag.evidence.adapters.shape import arr, dig, epoch_s, first, label, obj, text
from detdiag.evidence.observation import Observation, Output
from detdiag.inputs.canonical import prompt_part, request_digest

_KEPT: Final[tuple[str, ...]] = (
    "id",
    "created",
    "usage",
    "usageMetadata",
    "service_tier",
    "timings",
)


def build(
    path: Path,
    name: str,
    entries: Iterable[Exchange | Broken],
    lacks: tuple[str, ...],
    broken: Iterable[tuple[int, str]] = (),
) -> Adapted:
    """Observations of one file, in the order of the file."""
    faults = list(broken)
    exchanges: list[Exchange] = []
    for entry in entries:
        if isinstance(entry, Broken):
            faults.append((entry.line, entry.why))
        else:
            exchanges.append(entry)
    exchanges = _alike(exchanges)
    answers = [_outputs(exchange) for exchange in exchanges]
    exchanges = mark(exchanges, answers)
    factors, folded = _factors(exchanges)
    observations: list[Observation] = []
    for exchange, found, own in zip(exchanges, answers, factors, strict=True):
        if exchange.left_out is None:
            observations += _observations(path, exchange, found, own)
    observations = _unique_ids(observations)
    notes = [*counted(exchanges), *_folded(folded), *_ungrouped(observations)]
    if not exchanges:
        notes.append("no reply in this file")
    return Adapted(
        observations=tuple(observations),
        format=name,
        lacks=absent_channels(observations, lacks, recorded=folded),
        broken=tuple(sorted(faults)),
        notes=tuple(notes),
        calls=len(exchanges),
    )


def _alike(exchanges: list[Exchange]) -> list[Exchange]:
    """Where only some replies of a model keep their reasoning, none is compared by it."""
    bare = [_without_reasoning(exchange) for exchange in exchanges]
    keeps: dict[str | None, set[bool]] = defaultdict(set)
    for exchange, other in zip(exchanges, bare, strict=True):
        answered = exchange.output.text if exchange.output is not None else None
        if answered or bodies.family_of(exchange.response) is not None:
            keeps[label(dig(exchange.request, "model"))].add(other is not exchange)
    return [
        other if len(keeps[label(dig(exchange.request, "model"))]) > 1 else exchange
        for exchange, other in zip(exchanges, bare, strict=True)
    ]


def _without_reasoning(exchange: Exchange) -> Exchange:
    """The very same object where it has none."""
    if exchange.output is not None:
        return exchange if exchange.bare is None else replace(exchange, output=exchange.bare)
    body = without_reasoning(exchange.response)
    return exchange if body is exchange.response else replace(exchange, response=body)


def _outputs(exchange: Exchange) -> list[Output]:
    if exchange.output is not None:
        return [exchange.output]
    return bodies.outputs(exchange.response)


def _factors(exchanges: list[Exchange]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    rows: list[dict[str, Any]] = []
    replicas = replica_names([exchange.replica for exchange in exchanges])
    overlap = peak_overlap([_interval(e, r) for e, r in zip(exchanges, replicas, strict=True)])
    for exchange, name, peak in zip(exchanges, replicas, overlap, strict=True):
        row = {**response_factors(exchange.response), **exchange.factors}
        if name is not None:
            row["replica"] = name
        if peak is not None:
            row["concurrency"] = peak
        when = exchange.start_s or epoch_s(
            first(exchange.response, "created", "created_at", "createTime")
        )
        if when is not None:
            row["time"] = when
        rows.append(row)
    kept = [i for i, exchange in enumerate(exchanges) if exchange.left_out is None]
    return rows, merge_aliases([rows[i] for i in kept])


def _interval(exchange: Exchange, replica: str | None) -> tuple[str, float, float] | None:
    """Server and interval of one exchange; requests to other models share no batch."""
    if exchange.start_s is None or exchange.end_s is None or _never_ran(exchange):
        return None
    model = label(dig(exchange.request, "model")) or label(dig(exchange.response, "model"))
    return f"{model}|{replica}", exchange.start_s, exchange.end_s


def _never_ran(exchange: Exchange) -> bool:
    """Cached and refused calls took no place in a batch."""
    reason = exchange.left_out or ""
    return "response cache" in reason or reason.startswith("HTTP status 4")


def _observations(
    path: Path, exchange: Exchange, found: list[Output], factors: Mapping[str, Any]
) -> list[Observation]:
    """One observation a choice: the choices of one call repeat one condition."""
    ident = exchange.id or f"{path.name}:{exchange.line}"
    out = []
    for index, output in enumerate(found):
        several = len(found) > 1
        out.append(
            Observation(
                id=f"{ident}#{index}" if several else ident,
                query=exchange.query or _query(exchange.request, f"{path.name}:{exchange.line}"),
                request=exchange.request,
                surface=exchange.surface,
                prompt_token_ids=prompt_token_ids(exchange.response),
                output=output,
                factors={**factors, "repeat": index} if several else factors,
                response=_kept(exchange.response),
                source=f"{path}:{exchange.line}",
                unrecorded=() if exchange.parameters_recorded else ("parameters",),
            )
        )
    return out


def _query(request: Mapping[str, Any] | None, fallback: str) -> str:
    """Equal canonical requests are one question; a record without a prompt is one of its own."""
    if request is None or not _prompt_known(request):
        return f"unknown prompt at {fallback}"
    return "request " + request_digest(request).removeprefix("sha256:")[:16]


def _prompt_known(request: Mapping[str, Any]) -> bool:
    prompt = [value for value in prompt_part(request).values() if value]
    asked = [v for v in prompt if isinstance(v, str)]
    asked += [text(dig(m, "content")) or "" for v in prompt for m in arr(v)]
    return bool(prompt) and not any(redacted(words) for words in asked)


def _kept(response: Any) -> dict[str, Any] | None:
    kept = {key: obj(response)[key] for key in _KEPT if obj(response).get(key) is not None}
    return kept or None


def _unique_ids(observations: list[Observation]) -> list[Observation]:
    """Ids that occur again get a number: a log may call two records the same."""
    seen: Counter[str] = Counter()
    out = []
    for one in observations:
        seen[one.id] += 1
        again = seen[one.id]
        out.append(one if again == 1 else replace(one, id=f"{one.id}~{again}"))
    return out


def _folded(folded: Mapping[str, str]) -> list[str]:
    return [
        f"{name} always moves together with {kept}: one factor" for name, kept in folded.items()
    ]


def _ungrouped(observations: list[Observation]) -> list[str]:
    count = sum((one.query or "").startswith("unknown prompt") for one in observations)
    if not count:
        return []
    return [
        f"{count} of {len(observations)} records carry no prompt: nobody can say which of them "
        "repeat one request, so they are not compared"
    ]
