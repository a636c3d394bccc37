"""The short path of the miner: request/response pairs with one plain chat answer.

It reads the few fields that it needs straight from the decoded record. A record with anything
unusual is refused, and the adapter reads it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from detdiag.evidence.adapters import pairs
from detdiag.evidence.adapters.build import redacted
from detdiag.evidence.adapters.shape import epoch_s, number
from detdiag.incidents.columns import ABSENT, NAMES, Columns, text_key, value_key
from detdiag.incidents.signature import Keyer

MAX_PLANS: Final = 4096
_GOOD: Final = frozenset({None, 200, "200", "ok", "success"})
_REFUSED: Final = frozenset({"factors", "surface", "query", "cached_tokens"})
_UNUSUAL_REPLY: Final = ("error", "generation_settings", "meta_info", "timings", "modelVersion")
_UNUSUAL_USAGE: Final = (
    "input_tokens_details",
    "cache_read_input_tokens",
    "cacheReadInputTokens",
    "prompt_cache_hit_tokens",
)


class Plan(NamedTuple):
    """Where a record with certain field names keeps what; ``took_per_s`` scales the duration."""

    request: str
    response: str
    start: str | None
    end: str | None
    took: str | None
    took_per_s: float
    names: tuple[str, ...]
    status: str | None
    needs_model: bool


class ShortPath:
    """Adds a record to ``columns`` if it has the plain shape; says whether it did."""

    def __init__(self, columns: Columns, keyer: Keyer) -> None:
        self.columns = columns
        self.keyer = keyer
        self.plans: dict[tuple[str, ...], Plan | None] = {}

    def add(self, line: int, offset: int, row: Any) -> bool:
        if type(row) is not dict:
            return False
        fields = tuple(row)
        plan = self.plans.get(fields)
        if plan is None:
            plan = self._plan(fields)
        if plan is None:
            return False
        request, response = row[plan.request], row[plan.response]
        if type(request) is not dict or type(response) is not dict:
            return False
        if plan.needs_model and "model" not in request:
            return False
        return self._add(line, offset, row, plan, request, response)

    def _plan(self, fields: tuple[str, ...]) -> Plan | None:
        if fields in self.plans:
            return None
        plan = _plan_for(fields)
        if len(self.plans) < MAX_PLANS:
            self.plans[fields] = plan
        return plan

    def _add(
        self,
        line: int,
        offset: int,
        row: Mapping[str, Any],
        plan: Plan,
        request: dict[str, Any],
        response: dict[str, Any],
    ) -> bool:
        answer = chat_answer(response)
        if answer is None or "body" in request or "body" in response or redacted(answer):
            return False
        if plan.status is not None and row[plan.status] not in _GOOD:
            return False
        cached = _cached(response)
        times = _times(row, plan, response)
        key = 0 if cached is None or times is None else self.keyer.key(request)
        if cached is None or times is None or key == 0:
            return False
        self.columns.records += 1
        names = {name: row[name] for name in plan.names}
        self.columns.append(
            request=key,
            output=text_key(answer),
            reply_id=value_key(response.get("id")),
            offset=offset,
            line=line,
            start_s=times[0],
            end_s=times[1],
            cached=cached,
            system_fingerprint=names.get("system_fingerprint")
            or response.get("system_fingerprint"),
            replica=names.get("replica"),
            provider=names.get("provider") or response.get("provider"),
            model_reported=names.get("model_reported") or response.get("model"),
        )
        return True


def _plan_for(fields: tuple[str, ...]) -> Plan | None:
    present = frozenset(fields)

    def pick(names: tuple[str, ...]) -> str | None:
        return next((name for name in names if name in present), None)

    request, response = pick(pairs.REQUEST), pick(pairs.RESPONSE)
    if request is None or response is None or request == response or present & _REFUSED:
        return None
    if "status" in present and "status_code" in present:
        return None
    took_ms, took_s = pick(pairs.TOOK_MS), pick(pairs.TOOK_S)
    return Plan(
        request=request,
        response=response,
        start=pick(pairs.START),
        end=pick(pairs.END),
        took=took_s or took_ms,
        took_per_s=1.0 if took_s else 1000.0,
        names=tuple(name for name in NAMES if name in present),
        status=pick(("status", "status_code")),
        needs_model=any(name in present for name in ("url", "endpoint", "path")),
    )


def chat_answer(response: Mapping[str, Any]) -> str | None:
    """The content of a reply with one plain chat choice; None for anything else."""
    choices = response.get("choices")
    if type(choices) is not list or len(choices) != 1:
        return None
    for name in _UNUSUAL_REPLY:
        if name in response and response[name] is not None:
            return None
    choice = choices[0]
    message = choice.get("message") if type(choice) is dict else None
    if type(message) is not dict or message.get("tool_calls") or message.get("function_call"):
        return None
    if message.get("reasoning_content") or message.get("reasoning") or message.get("thinking"):
        return None
    content = message.get("content")
    return content if type(content) is str else None


def _cached(response: Mapping[str, Any]) -> int | None:
    """Cached prompt tokens, ``ABSENT`` where the reply does not say, None for another spelling."""
    usage = response.get("usage")
    if type(usage) is not dict:
        return ABSENT
    details = usage.get("prompt_tokens_details")
    if type(details) is dict:
        found = details.get("cached_tokens")
        if type(found) is int and 0 <= found < 2**62:
            return found
    return None if any(name in usage for name in _UNUSUAL_USAGE) else ABSENT


def _times(
    row: Mapping[str, Any], plan: Plan, response: Mapping[str, Any]
) -> tuple[float, float] | None:
    """Start and end, NaN where absent; None where a null field may hide another one."""
    start_s = end_s = None
    if plan.start is not None:
        start_s = epoch_s(row[plan.start])
        if row[plan.start] is None:
            return None
    if plan.end is not None:
        end_s = epoch_s(row[plan.end])
        if row[plan.end] is None:
            return None
    elif plan.took is not None and start_s is not None:
        took = number(row[plan.took])
        if took is None or took < 0:
            return None
        end_s = start_s + took / plan.took_per_s
    if start_s is None:
        start_s = epoch_s(response.get("created"))
    return (math.nan if start_s is None else start_s, math.nan if end_s is None else end_s)
