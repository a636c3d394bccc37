"""The short path of the miner: request/response pairs with one plain chat answer.

What large logs hold in the millions. The field names of a record decide once how all records with
the same names are read (a :class:`Plan`); a record with anything unusual is refused, and the
adapter of its format reads it.
"""

from __future__ import annotations

from collections.abc import Callable
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
Names = tuple[str, ...]


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


class ShortPath:
    """Appends rows of :class:`~detdiag.incidents.columns.Row` for records of the plain shape."""

    def __init__(self, append: Callable[[tuple[Any, ...]], None], keyer: Keyer) -> None:
        self.append = append
        self.keyer = keyer
        self.plans: dict[Names, Plan | None] = {}
        self.unusual: dict[Names, Names] = {}

    def add(self, line: int, offset: int, row: Any) -> bool:
        """Append the row of one record and say whether that was possible."""
        if type(row) is not dict:
            return False
        fields = tuple(row)
        plan = self.plans[fields] if fields in self.plans else self._plan(fields)
        if plan is None:
            return False
        request, response = row[plan.request], row[plan.response]
        if type(request) is not dict or type(response) is not dict:
            return False
        if "body" in request or (plan.has_url and "model" not in request):
            return False
        if plan.status is not None and row[plan.status] not in _GOOD:
            return False
        answer = self._answer(response)
        cached = self._cached(response)
        if answer is None or cached is None:
            return False
        start = end = took = None
        if plan.start is not None and (start := row[plan.start]) is None:
            return False
        if plan.end is not None and (end := row[plan.end]) is None:
            return False
        if plan.took is not None and end is None and start is not None:
            took = number(row[plan.took])
            if took is None or took < 0:
                return False
            took /= plan.took_per_s
        key = self.keyer.key(request)
        if key == 0:
            return False
        fingerprint, replica, provider, model = plan.own_names
        own = row.get
        reply = response.get
        self.append(
            (
                key,
                answer,
                reply("id"),
                offset,
                line,
                start,
                end,
                took,
                reply("created"),
                cached,
                (fingerprint and own(fingerprint)) or reply("system_fingerprint"),
                replica and own(replica),
                (provider and own(provider)) or reply("provider"),
                (model and own(model)) or reply("model"),
            )
        )
        return True

    def _plan(self, fields: Names) -> Plan | None:
        plan = plan_for(fields)
        if len(self.plans) < MAX_PLANS:
            self.plans[fields] = plan
        return plan

    def _marked(self, fields: Names, marks: frozenset[str]) -> Names:
        """The unusual names among ``fields``."""
        found = tuple(name for name in fields if name in marks)
        if len(self.unusual) < MAX_PLANS:
            self.unusual[fields] = found
        return found

    def _answer(self, response: dict[str, Any]) -> str | None:
        """The content of a reply with one plain chat choice; None for anything else."""
        fields = tuple(response)
        marked = self.unusual.get(fields)
        for name in self._marked(fields, _UNUSUAL_REPLY) if marked is None else marked:
            if response[name] is not None:
                return None
        choices = response.get("choices")
        if type(choices) is not list or len(choices) != 1 or type(choices[0]) is not dict:
            return None
        message = choices[0].get("message")
        if type(message) is not dict:
            return None
        fields = tuple(message)
        marked = self.unusual.get(fields)
        for name in self._marked(fields, _UNUSUAL_MESSAGE) if marked is None else marked:
            if message[name]:
                return None
        content = message.get("content")
        return content if type(content) is str and not redacted(content) else None

    def _cached(self, response: dict[str, Any]) -> int | None:
        """Cached prompt tokens, ``ABSENT`` where the reply does not say; None if spelled
        otherwise."""
        usage = response.get("usage")
        if type(usage) is not dict:
            return ABSENT
        details = usage.get("prompt_tokens_details")
        if type(details) is dict:
            found = details.get("cached_tokens")
            if type(found) is int and 0 <= found < 2**62:
                return found
        fields = tuple(usage)
        marked = self.unusual.get(fields)
        return (
            None if (self._marked(fields, _UNUSUAL_USAGE) if marked is None else marked) else ABSENT
        )


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
