"""The canonical signature of a request: what it prints, and a fast 64-bit key for grouping."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
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
    """Field names of a request: those that count, sorted, and ``head``, which stands for them in
    the key; how many of the first ones are prompts is known by ``prompt``."""

    head: str
    shown: tuple[str, ...]
    prompt: tuple[str, ...]
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
        return self.keys([request])[0]

    def keys(self, requests: Sequence[Mapping[str, Any]]) -> list[int]:
        """The keys of requests that all have the same field names in the same order."""
        fields = tuple(requests[0])
        names = self.names.get(fields) or self._names(fields)
        for name in names.inert:
            self.seen[name] += len(requests)
        if names.slow:
            return [self._slow(request) for request in requests]
        columns: list[Iterable[Any]] = [repeat(names.head)]
        for name in names.shown:
            column = [request[name] for request in requests]
            if name not in names.prompt and not set(map(type, column)) <= _SIMPLE:
                column = [_plain(value) for value in column]
            columns.append(column)
        keys = _keys_of(list(zip(*columns, strict=False)))
        prompts = [[bool(r[name]) for r in requests] for name in names.prompt]
        asked = map(any, zip(*prompts, strict=True)) if prompts else repeat(False)
        return [key if ask else 0 for key, ask in zip(keys, asked, strict=False)]

    def _names(self, fields: tuple[str, ...]) -> Names:
        kinds = {name: _kind(name) for name in fields}
        slow = ENVELOPE in kinds.values()
        shown = tuple(sorted(n for n, kind in kinds.items() if kind != INERT))
        names = Names(
            head=_head(shown),
            shown=shown,
            prompt=tuple(n for n in shown if kinds[n] == PROMPT),
            inert=() if slow else tuple(n for n, kind in kinds.items() if kind == INERT),
            slow=slow,
        )
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
        canonical = canonical_request(request)
        shown = tuple(sorted(canonical))
        return _keys_of([(_head(shown), *(canonical[name] for name in shown))])[0]


def _head(names: Sequence[str]) -> str:
    return repr(tuple(names))


def _keys_of(values: Sequence[tuple[Any, ...]]) -> list[int]:
    """Keys of canonical requests given as the head of their names and their values in order.

    Where the fast writer refuses one (integers beyond 64 bits, lone surrogates) its key comes from
    the standard library's JSON.
    """
    dumps, digest, option = orjson.dumps, xxhash.xxh3_64_intdigest, orjson.OPT_SORT_KEYS
    try:
        return [digest(dumps(one, None, option)) or 1 for one in values]
    except (TypeError, ValueError, RecursionError):
        return [_key_of(one) for one in values]


def _key_of(values: tuple[Any, ...]) -> int:
    try:
        raw = orjson.dumps(values, None, orjson.OPT_SORT_KEYS)
    except (TypeError, ValueError, RecursionError):
        text = json.dumps(values, sort_keys=True, ensure_ascii=False, default=str)
        raw = text.encode("utf-8", "surrogatepass")
    return xxhash.xxh3_64_intdigest(raw) or 1


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
