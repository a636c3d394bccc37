"""The canonical signature of a request: what it prints, and a fast 64-bit key for grouping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

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

MAX_SHAPES: Final = 4096
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


class Names(NamedTuple):
    """Field names of a request by what they are; ``slow`` where only the full form will do."""

    prompt: tuple[str, ...]
    other: tuple[str, ...]
    inert: tuple[str, ...]
    slow: bool


class Keyer:
    """64-bit keys of requests: equal keys for equal canonical requests.

    ``names`` remembers what the fields of a request are, so that a log with a few dozen shapes
    pays for their spelling once. ``seen`` counts inert fields for the report.
    """

    def __init__(self) -> None:
        self.names: dict[tuple[str, ...], Names] = {}
        self.seen: dict[str, int] = {}

    def key(self, request: Mapping[str, Any]) -> int:
        """The key of a request; 0 for a request without a prompt."""
        fields = tuple(request)
        names = self.names.get(fields)
        if names is None:
            names = self._names(fields)
        if names.slow:
            return self._slow(request)
        kept = {name: request[name] for name in names.prompt}
        if not any(kept.values()):
            return 0
        for name in names.other:
            value = request[name]
            kept[name] = value if type(value) in _SIMPLE else _plain(value)
        for name in names.inert:
            self.seen[name] += 1
        return _key_of(kept)

    def _names(self, fields: tuple[str, ...]) -> Names:
        kinds = [_kind(name) for name in fields]
        prompt, other, inert = (
            tuple(n for n, k in zip(fields, kinds, strict=True) if k == kind)
            for kind in (PROMPT, OTHER, INERT)
        )
        names = Names(prompt, other, inert, ENVELOPE in kinds)
        for name in names.inert:
            self.seen.setdefault(name, 0)
        if len(self.names) < MAX_SHAPES:
            self.names[fields] = names
        return names

    def _slow(self, request: Mapping[str, Any]) -> int:
        for name in left_out(request):
            self.seen[name] = self.seen.get(name, 0) + 1
        if not any(normal_key(k) in PROMPT_FIELDS and v for k, v in request.items()):
            return 0
        return _key_of(canonical_request(request))


def _key_of(canonical: Mapping[str, Any]) -> int:
    """The key of a canonical request; where the fast writer refuses it (integers beyond 64 bits,
    lone surrogates) the key comes from the printable digest."""
    try:
        return xxhash.xxh3_64_intdigest(orjson.dumps(canonical, option=orjson.OPT_SORT_KEYS)) or 1
    except (TypeError, ValueError, RecursionError):
        return int(request_digest(canonical)[7:23], 16) or 1


_SIMPLE: Final = frozenset({int, str, bool, type(None)})


def _kind(name: str) -> int:
    if is_inert(name):
        return INERT
    spelled = normal_key(name)
    if spelled in ENVELOPES:
        return ENVELOPE
    return PROMPT if spelled in PROMPT_FIELDS else OTHER


def _plain(value: Any) -> Any:
    """1.0 as 1, as the canonical form has it, at any depth of a parameter."""
    if type(value) is float:
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if type(value) is dict:
        return {k: _plain(v) for k, v in value.items()}
    if type(value) is list:
        return [_plain(v) for v in value]
    return value
