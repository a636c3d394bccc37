"""Typed decoders for plain request/response pairs.

A decoder keeps the few fields that the miner needs and skips the rest without making objects of
it. It refuses a record with anything that the adapter of plain pairs would read in another way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from detdiag.evidence.adapters import pairs
from detdiag.incidents.columns import NAMES
from detdiag.incidents.signature import INERT, OTHER, field_kind

Scalar = str | int | float | bool | None
Empty = Annotated[str, Meta(max_length=0)] | None


class Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message of a request that holds nothing but a role and a text."""

    role: str
    content: str


class Answer(msgspec.Struct, gc=False):
    """A plain answer: no tool calls, no reasoning."""

    content: str
    tool_calls: Annotated[list[Any], Meta(max_length=0)] | None = None
    function_call: None = None
    reasoning_content: Empty = None
    reasoning: Empty = None
    thinking: Empty = None


class Choice(msgspec.Struct, gc=False):
    message: Answer


class Details(msgspec.Struct, gc=False):
    cached_tokens: Annotated[int, Meta(ge=0)] | None = None


class Usage(msgspec.Struct, gc=False):
    """Token counts as OpenAI spells them; cached tokens under another name are refused."""

    prompt_tokens_details: Details | None = None
    input_tokens_details: None = None
    cache_read_input_tokens: None = None
    cacheReadInputTokens: None = None
    prompt_cache_hit_tokens: None = None


class Reply(msgspec.Struct, gc=False):
    """A reply with one choice and none of the fields that only some servers send."""

    choices: Annotated[list[Choice], Meta(min_length=1, max_length=1)]
    id: str | int | None = None
    model: Scalar = None
    created: Scalar = None
    system_fingerprint: Scalar = None
    provider: Scalar = None
    usage: Usage | None = None
    object: Literal["chat.completion"] | None = None
    type: None = None
    error: None = None
    body: None = None
    status: None = None
    status_code: None = None
    created_at: None = None
    createTime: None = None
    generation_settings: None = None
    meta_info: None = None
    timings: None = None
    usageMetadata: None = None
    modelVersion: None = None
    model_version: None = None
    responseId: None = None


class Plan(NamedTuple):
    """Which field of a record is what; ``took_per_s`` scales the duration to seconds."""

    request: str
    response: str
    start: str | None
    end: str | None
    took: str | None
    took_per_s: float
    status: str | None
    has_url: bool
    only_start: bool


READ: Final = frozenset(
    {*pairs.REQUEST, *pairs.RESPONSE, *pairs.START, *pairs.END, *pairs.TOOK_MS, *pairs.TOOK_S}
    | {
        *NAMES,
        "status",
        "status_code",
        "factors",
        "cached_tokens",
        "url",
        "endpoint",
        "path",
        "error",
    }
)
"""Fields of a record that the adapter of plain pairs reads and that reach a column."""


def plan_for(present: frozenset[str]) -> Plan | None:
    """How to read records with these fields; None where only the adapter can."""
    took_names = (*pairs.TOOK_S, *pairs.TOOK_MS)
    request, response = _pick(pairs.REQUEST, present), _pick(pairs.RESPONSE, present)
    if request is None or response is None or present & {"factors", "cached_tokens"}:
        return None
    for alternatives in (pairs.END, took_names, ("status", "status_code")):
        if len(present.intersection(alternatives)) > 1:
            return None
    took = _pick(took_names, present)
    return Plan(
        request=request,
        response=response,
        start=_pick(pairs.START, present),
        end=_pick(pairs.END, present),
        took=took,
        took_per_s=1000.0 if took in pairs.TOOK_MS else 1.0,
        status=_pick(("status", "status_code"), present),
        has_url=bool(present & {"url", "endpoint", "path"}),
        only_start=len(present.intersection(pairs.START)) == 1,
    )


def _pick(names: tuple[str, ...], present: frozenset[str]) -> str | None:
    return next((name for name in names if name in present), None)


class Typed(NamedTuple):
    """A decoder of records whose request holds plain messages and scalars only. ``values`` gives
    the scalars named ``names``; ``inert`` maps inert fields to attributes."""

    decoder: msgspec.json.Decoder[Any]
    names: tuple[str, ...]
    values: Callable[[Any], Any]
    inert: Mapping[str, str]


def generic_decoder(plan: Plan, present: frozenset[str]) -> msgspec.json.Decoder[Any]:
    """Decodes ``request`` as a dict."""
    return msgspec.json.Decoder(_record(plan, present, dict[str, Any]))


def typed_decoder(plan: Plan, present: frozenset[str], request: Mapping[str, bool]) -> Typed | None:
    """A decoder for requests with these fields; None where they hold more than messages.

    ``request`` says whether a field holds a boolean. 1 and true are equal in Python and different
    in a request, so a field takes one of the two kinds and refuses the other."""
    kinds = {name: field_kind(name) for name in sorted(request)}
    if "messages" not in kinds or "body" in kinds or (plan.has_url and "model" not in kinds):
        return None
    fields: list[tuple[str, Any, Any]] = [
        ("messages", Annotated[list[Message], Meta(min_length=1)])  # type: ignore[list-item]
    ]
    rename: dict[str, str] = {}
    names: list[str] = []
    inert: dict[str, str] = {}
    for place, (name, kind) in enumerate(kinds.items()):
        attribute = f"f{place}"
        if name == "messages":
            continue
        rename[attribute] = name
        if kind == INERT:
            fields.append((attribute, Raw | UnsetType, UNSET))
            inert[name] = attribute
        elif kind == OTHER:
            scalar = bool | None if request[name] else str | int | float | None
            fields.append((attribute, scalar | UnsetType, UNSET))
            names.append(attribute)
        else:
            return None
    shape = msgspec.defstruct(
        "Request", fields, rename=rename, forbid_unknown_fields=True, gc=False
    )
    decoder = msgspec.json.Decoder(_record(plan, present, shape))
    values = attrgetter(*names, "messages")
    return Typed(decoder, tuple(rename[a] for a in names), values, inert)


def _record(plan: Plan, present: frozenset[str], request: Any) -> Any:
    """The record: planned fields typed, other known fields of these records skipped, and known
    fields that were not seen before refused unless they are null."""
    planned: dict[str, tuple[str, Any]] = {
        plan.request: ("request", request),
        plan.response: ("response", Reply),
    }
    optional: dict[str | None, tuple[str, Any]] = {
        plan.start: ("start", Scalar),
        plan.end: ("end", Scalar),
        plan.took: ("took", Scalar),
        plan.status: ("status", Literal[200, "200", "ok", "success"] | None),
        **{name: (f"own_{name}", Scalar) for name in NAMES},
        "error": ("error", Empty),
    }
    fields: list[Any] = [(attribute, kind) for attribute, kind in planned.values()]
    rename = {attribute: name for name, (attribute, _) in planned.items()}
    for name, (attribute, kind) in optional.items():
        if name is not None:
            fields.append((attribute, kind, None))
            rename[attribute] = name
    others = READ - set(planned) - {name for name in optional if name is not None}
    for place, name in enumerate(sorted(others)):
        kind = Raw | None if name in present else None
        fields.append((f"o{place}", kind, None))
        rename[f"o{place}"] = name
    return msgspec.defstruct("Record", fields, rename=rename, gc=False)
