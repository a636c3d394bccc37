"""The short path of the miner: request/response pairs with one plain chat answer, by columns.

What large logs hold in the millions. Records with the same field names are read together, one
field at a time over all of them; a group in which anything is unusual is read one by one, and a
record that is unusual on its own is refused: the adapter of its format reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from detdiag.evidence.adapters import pairs
from detdiag.evidence.adapters.build import redacted
from detdiag.evidence.adapters.shape import number
from detdiag.incidents.columns import ABSENT, NAMES
from detdiag.incidents.signature import Keyer

MAX_PLANS: Final = 4096
_GOOD: Final = frozenset({None, 200, "200", "ok", "success"})
_REFUSED_FIELDS: Final = frozenset({"factors", "surface", "cached_tokens"})
_UNUSUAL_REPLY: Final = frozenset(
    "error generation_settings meta_info timings modelVersion body created_at createTime "
    "responseId".split()
)
_UNUSUAL_MESSAGE: Final = frozenset(
    "tool_calls function_call reasoning_content reasoning thinking".split()
)
_UNUSUAL_USAGE: Final = frozenset(
    "input_tokens_details cache_read_input_tokens cacheReadInputTokens "
    "prompt_cache_hit_tokens".split()
)
_SHORTEST_PLAIN: Final = 40
Names = tuple[str, ...]
Dicts = Sequence[dict[str, Any]]
Part = list[Sequence[Any]]
"""Columns in the order of :class:`~detdiag.incidents.columns.Row`."""


class Plan(NamedTuple):
    """Which field of a record is what; ``took_per_s`` scales the duration to seconds."""

    request: str
    response: str
    start: str | None
    end: str | None
    took: str | None
    took_per_s: float
    own_names: tuple[str | None, ...]
    status: str | None
    has_url: bool


class Batch(NamedTuple):
    """Records with the same field names: their lines, offsets, bodies and places."""

    lines: Sequence[int]
    offsets: Sequence[int]
    rows: Sequence[dict[str, Any]]
    requests: list[dict[str, Any]]
    responses: list[dict[str, Any]]


class ShortPath:
    """Turns batches of decoded records into columns and says which records it refuses."""

    def __init__(self, keyer: Keyer) -> None:
        self.keyer = keyer
        self.plans: dict[Names, Plan | None] = {}

    def read(
        self, lines: Sequence[int], offsets: Sequence[int], rows: Sequence[Any]
    ) -> tuple[list[Part], list[int]]:
        """Columns of the plain records, and the indices into ``rows`` of the others."""
        batch = self._whole(lines, offsets, rows)
        part = None if batch is None else self._part(*batch)
        if part is not None:
            return [part], []
        return self._apart(lines, offsets, rows)

    def _whole(
        self, lines: Sequence[int], offsets: Sequence[int], rows: Sequence[Any]
    ) -> tuple[Plan, Batch] | None:
        """All records as one batch, if all have the same field names."""
        if set(map(type, rows)) != {dict}:
            return None
        shapes = set(map(tuple, rows))
        plan = self._plan(next(iter(shapes))) if len(shapes) == 1 else None
        if plan is None:
            return None
        requests = [row[plan.request] for row in rows]
        responses = [row[plan.response] for row in rows]
        for bodies in (requests, responses):
            if set(map(type, bodies)) != {dict} or len(set(map(tuple, bodies))) != 1:
                return None
        return plan, Batch(lines, offsets, rows, requests, responses)

    def _apart(
        self, lines: Sequence[int], offsets: Sequence[int], rows: Sequence[Any]
    ) -> tuple[list[Part], list[int]]:
        """Records by their field names; what is unusual in company is tried alone."""
        parts: list[Part] = []
        refused: list[int] = []
        groups: dict[tuple[Names, Names, Names], list[int]] = {}
        for index, row in enumerate(rows):
            key = self._shape(row)
            if key is None:
                refused.append(index)
            else:
                groups.setdefault(key, []).append(index)
        waiting = list(groups.values())
        while waiting:
            some = waiting.pop()
            batch = self._whole(*([values[i] for i in some] for values in (lines, offsets, rows)))
            part = None if batch is None else self._part(*batch)
            if part is not None:
                parts.append(part)
            elif len(some) == 1:
                refused += some
            else:
                waiting += [[index] for index in some]
        return parts, sorted(refused)

    def _shape(self, row: Any) -> tuple[Names, Names, Names] | None:
        if type(row) is not dict:
            return None
        fields = tuple(row)
        plan = self._plan(fields)
        if plan is None:
            return None
        request, response = row[plan.request], row[plan.response]
        if type(request) is not dict or type(response) is not dict:
            return None
        return fields, tuple(request), tuple(response)

    def _plan(self, fields: Names) -> Plan | None:
        try:
            return self.plans[fields]
        except KeyError:
            plan = plan_for(fields)
            if len(self.plans) < MAX_PLANS:
                self.plans[fields] = plan
            return plan

    def _part(self, plan: Plan, batch: Batch) -> Part | None:
        request = batch.requests[0]
        if "body" in request or (plan.has_url and "model" not in request):
            return None
        if plan.status is not None and not all(_good(row[plan.status]) for row in batch.rows):
            return None
        answers, cached = _answers(batch.responses), _cached(batch.responses)
        times = _times(plan, batch.rows)
        if answers is None or cached is None or times is None:
            return None
        keys = self.keyer.keys(batch.requests)
        if not all(keys):
            return None
        fingerprint, replica, provider, model = plan.own_names
        responses, rows = batch.responses, batch.rows
        return [
            keys,
            answers,
            _field(responses, "id"),
            batch.offsets,
            batch.lines,
            *times,
            _field(responses, "created"),
            cached,
            _own(rows, fingerprint, _field(responses, "system_fingerprint")),
            _own(rows, replica, [None] * len(rows)),
            _own(rows, provider, _field(responses, "provider")),
            _own(rows, model, _field(responses, "model")),
        ]


def plan_for(fields: Names) -> Plan | None:
    """How to read records with these field names; None where only the adapter can."""
    present = frozenset(fields)

    def pick(names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in present), None)

    request, response = pick(pairs.REQUEST), pick(pairs.RESPONSE)
    if request is None or response is None or present & _REFUSED_FIELDS:
        return None
    if {"status", "status_code"} <= present:
        return None
    took_ms, took_s = pick(pairs.TOOK_MS), pick(pairs.TOOK_S)
    return Plan(
        request=request,
        response=response,
        start=pick(pairs.START),
        end=pick(pairs.END),
        took=took_s or took_ms,
        took_per_s=1.0 if took_s else 1000.0,
        own_names=tuple(name if name in present else None for name in NAMES),
        status=pick(("status", "status_code")),
        has_url=bool(present & {"url", "endpoint", "path"}),
    )


def _good(status: Any) -> bool:
    return type(status) in (str, int, type(None)) and status in _GOOD


def _field(bodies: Dicts, name: str) -> list[Any]:
    """One field of bodies that all have the same names."""
    return [body[name] for body in bodies] if name in bodies[0] else [None] * len(bodies)


def _own(rows: Dicts, name: str | None, other: list[Any]) -> list[Any]:
    """The record's own field; ``other`` where it is empty or absent."""
    if name is None:
        return other
    return [row[name] or o for row, o in zip(rows, other, strict=True)]


def _answers(responses: Dicts) -> list[str] | None:
    """Contents of replies with one plain chat choice each; None if one is anything else."""
    for name in _UNUSUAL_REPLY.intersection(responses[0]):
        if any(body[name] is not None for body in responses):
            return None
    try:
        choices = [body["choices"] for body in responses]
        if set(map(type, choices)) != {list} or set(map(len, choices)) != {1}:
            return None
        messages = [choice[0]["message"] for choice in choices]
        if set(map(type, messages)) != {dict}:
            return None
        contents = [message["content"] for message in messages]
    except (KeyError, TypeError):
        return None
    if set(map(type, contents)) != {str}:
        return None
    for name in _UNUSUAL_MESSAGE.intersection(*[set().union(*set(map(tuple, messages)))]):
        if any(message.get(name) for message in messages):
            return None
    return None if _any_redacted(contents) else contents


def _any_redacted(contents: Sequence[str]) -> bool:
    if min(map(len, contents)) < _SHORTEST_PLAIN:
        return any(map(redacted, contents))
    return any("(litellm_truncated" in content for content in contents)


def _cached(responses: Dicts) -> list[int] | None:
    """Cached prompt tokens, ``ABSENT`` where the replies do not say; None if spelled otherwise or
    if only some of them say."""
    usages = _field(responses, "usage")
    kinds = set(map(type, usages))
    if dict not in kinds:
        return [ABSENT] * len(usages)
    if len(kinds) > 1:
        return None
    details = [usage.get("prompt_tokens_details") for usage in usages]
    if set(map(type, details)) == {dict}:
        found = [detail.get("cached_tokens") for detail in details]
        if set(map(type, found)) == {int} and 0 <= min(found) and max(found) < 2**62:
            return found
        if set(map(type, found)) != {type(None)}:
            return None if len(found) > 1 else _unspelled(usages)
    elif len(details) > 1 and dict in set(map(type, details)):
        return None
    return _unspelled(usages)


def _unspelled(usages: Dicts) -> list[int] | None:
    names = set().union(*set(map(tuple, usages)))
    return None if names & _UNUSUAL_USAGE else [ABSENT] * len(usages)


def _times(plan: Plan, rows: Dicts) -> tuple[list[Any], list[Any], list[Any]] | None:
    """Start, end and duration in seconds; None where a null field may hide another one."""
    nothing: list[Any] = [None] * len(rows)
    starts = ends = tooks = nothing
    if plan.start is not None:
        starts = [row[plan.start] for row in rows]
        if None in starts:
            return None
    if plan.end is not None:
        ends = [row[plan.end] for row in rows]
        if None in ends:
            return None
    elif plan.took is not None and plan.start is not None:
        tooks = [number(row[plan.took]) for row in rows]
        if any(took is None or not took >= 0 for took in tooks):
            return None
        tooks = [took / plan.took_per_s for took in tooks]
    return starts, ends, tooks
