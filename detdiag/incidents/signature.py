"""The canonical signature of a request: what it prints, and a fast 64-bit key for grouping."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import xxhash

from detdiag.inputs.canonical import (
    ENVELOPES,
    PROMPT_FIELDS,
    canonical_request,
    is_inert,
    normal_key,
    request_digest,
)

INERT: Final = 0
PROMPT: Final = 1
ENVELOPE: Final = 2
OTHER: Final = 3


@dataclass(frozen=True, slots=True)
class Signature:
    """``digest`` is ``sha256:`` of ``canonical`` as JSON; ``left_out`` names the inert fields that
    the request holds."""

    digest: str
    canonical: Mapping[str, Any]
    left_out: tuple[str, ...]


def signature(request: Mapping[str, Any]) -> Signature:
    """The printable signature of one request body."""
    return Signature(request_digest(request), canonical_request(request), left_out(request))


def left_out(request: Mapping[str, Any], prefix: str = "") -> tuple[str, ...]:
    """Dotted names of the fields that cannot change the output."""
    found: list[str] = []
    for key, value in request.items():
        if is_inert(key):
            found.append(prefix + key)
        elif normal_key(key) in ENVELOPES and isinstance(value, Mapping):
            found += left_out(value, f"{prefix}{key}.")
    return tuple(found)


class Keyer:
    """64-bit keys of requests: equal keys for equal canonical requests.

    ``kinds`` remembers what a field is, so that a log pays for the spelling of its few dozen names
    once. ``seen`` counts inert fields for the report.
    """

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self.seen: dict[str, int] = {}

    def key(self, request: Mapping[str, Any]) -> int:
        """The key of a request; 0 for a request without a prompt."""
        kept: dict[str, Any] = {}
        prompted = False
        for name, value in request.items():
            kind = self.kinds.get(name)
            if kind is None:
                kind = self.kinds[name] = field_kind(name)
            if kind == PROMPT:
                kept[name] = value
                prompted = prompted or bool(value)
            elif kind == OTHER:
                kept[name] = value if type(value) in _SIMPLE else plain(value)
            elif kind == ENVELOPE:
                return self._enveloped(request)
        for name in request:
            if self.kinds[name] == INERT:
                self.seen[name] = self.seen.get(name, 0) + 1
        return canonical_key(kept) if prompted else 0

    def _enveloped(self, request: Mapping[str, Any]) -> int:
        for name in left_out(request):
            self.seen[name] = self.seen.get(name, 0) + 1
        if not any(normal_key(k) in PROMPT_FIELDS and v for k, v in request.items()):
            return 0
        return canonical_key(canonical_request(request))


def canonical_key(canonical: Mapping[str, Any]) -> int:
    """The key of a canonical request.

    Messages that hold nothing but a role and a text go into it one string after the other, behind
    the JSON of the rest: a reader that knows the strings need not build the messages.
    """
    flat = _flat(canonical.get("messages"))
    if flat is None:
        return _digest(canonical)
    rest = {name: value for name, value in canonical.items() if name != "messages"}
    return _digest([head(rest), *flat])


def flat_keys(flat: Sequence[list[str]]) -> list[int]:
    """The keys of requests given as :func:`head` and their messages' roles and texts."""
    try:
        return [xxhash.xxh3_64_intdigest(orjson.dumps(one)) or 1 for one in flat]
    except (TypeError, ValueError):
        return [_digest(one) for one in flat]


def head(rest: Mapping[str, Any]) -> str:
    """What is not messages, as JSON."""
    return _json(rest).decode("utf-8", "surrogatepass")


def _flat(messages: Any) -> list[str] | None:
    if type(messages) is not list or not messages:
        return None
    out: list[str] = []
    for message in messages:
        if type(message) is not dict or len(message) != 2:
            return None
        role, content = message.get("role"), message.get("content")
        if type(role) is not str or type(content) is not str:
            return None
        out += (role, content)
    return out


def _digest(value: Any) -> int:
    return xxhash.xxh3_64_intdigest(_json(value)) or 1


def _json(value: Any) -> bytes:
    """Sorted JSON; by the standard library where the fast writer refuses (integers beyond 64 bits,
    lone surrogates)."""
    try:
        return orjson.dumps(value, None, orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
        return text.encode("utf-8", "surrogatepass")


_SIMPLE: Final = frozenset({int, str, bool, type(None)})


def field_kind(name: str) -> int:
    """``INERT``, ``PROMPT``, ``ENVELOPE`` or ``OTHER``."""
    if is_inert(name):
        return INERT
    spelled = normal_key(name)
    if spelled in ENVELOPES:
        return ENVELOPE
    return PROMPT if spelled in PROMPT_FIELDS else OTHER


def plain(value: Any) -> Any:
    """1.0 as 1, as the canonical form has it, at any depth of a parameter."""
    if type(value) is float:
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if type(value) is dict:
        return {k: plain(v) for k, v in value.items()}
    if type(value) is list:
        return [plain(v) for v in value]
    return value
