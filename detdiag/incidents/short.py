"""The short path of the miner: request/response pairs with one plain chat answer.

What large logs hold in the millions. Lines go through a typed decoder that was built from the
fields of the lines before; what it refuses goes to the adapter of the format.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
import orjson
from msgspec import UNSET

from detdiag.evidence.adapters.left_out import redacted
from detdiag.evidence.adapters.shape import label, number
from detdiag.incidents.columns import ABSENT, NAMES
from detdiag.incidents.signature import Keyer, flat_keys, head, plain
from detdiag.incidents.typed import (
    READ,
    Plan,
    Reply,
    Typed,
    Usage,
    generic_decoder,
    plan_for,
    typed_decoder,
)

MAX_LEARNED: Final = 64
MAX_HEADS: Final = 4096
_SHORTEST_PLAIN: Final = 40
_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
Part = list[Sequence[Any]]
"""Columns in the order of :class:`~detdiag.incidents.columns.Row`."""


class ShortPath:
    """Turns lines into columns and says which lines it refuses.

    ``typed`` decodes requests of plain messages, ``generic`` any request; both are None until a
    first line was learned from. ``request_fields`` says of each field whether it holds a boolean.
    """

    def __init__(self, keyer: Keyer) -> None:
        self.keyer = keyer
        self.plan: Plan | None = None
        self.fields: frozenset[str] = frozenset()
        self.request_fields: dict[str, bool] = {}
        self.typed: Typed | None = None
        self.generic: msgspec.json.Decoder[Any] | None = None
        self.learned = 0
        self.heads: dict[Any, str] = {}

    def read(
        self, lines: Sequence[bytes], numbers: Sequence[int], offsets: Sequence[int]
    ) -> tuple[list[Part], Sequence[int]]:
        """Columns of the plain records among ``lines``, and the indices of the others."""
        part = self._together(lines, numbers, offsets)
        if part is not None:
            return [part], ()
        parts: list[Part] = []
        refused: list[int] = []
        for index, line in enumerate(lines):
            alone = ([line], [numbers[index]], [offsets[index]])
            part = self._together(*alone)
            if part is None and self._learn(line):
                part = self._together(*alone)
            if part is None:
                refused.append(index)
            else:
                parts.append(part)
        return parts, refused

    def _together(
        self, lines: Sequence[bytes], numbers: Sequence[int], offsets: Sequence[int]
    ) -> Part | None:
        """Columns of all the lines; None if one of them is anything else."""
        if self.plan is None or self.generic is None:
            return None
        text = b"".join(lines)
        if self.typed is not None:
            records = _decoded(self.typed.decoder, text)
            if records is not None and len(records) == len(lines):
                keys = self._typed_keys(self.typed, [record.request for record in records])
                return _columns(self.plan, records, keys, numbers, offsets)
        records = _decoded(self.generic, text)
        if records is None or len(records) != len(lines):
            return None
        requests = [record.request for record in records]
        if any("body" in r or (self.plan.has_url and "model" not in r) for r in requests):
            return None
        counted = dict(self.keyer.seen)
        part = _columns(self.plan, records, list(map(self.keyer.key, requests)), numbers, offsets)
        if part is None:
            self.keyer.seen.clear()
            self.keyer.seen.update(counted)
        return part

    def _learn(self, line: bytes) -> bool:
        """Build the decoders anew with the fields of this line; False where that adds nothing."""
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            return False
        if self.learned >= MAX_LEARNED or not isinstance(row, dict):
            return False
        fields = self.fields | (READ & frozenset(row))
        plan = plan_for(fields)
        request = None if plan is None else row.get(plan.request)
        if plan is None or not isinstance(request, dict):
            return False
        request_fields = {n: isinstance(v, bool) for n, v in request.items()} | self.request_fields
        if (fields, request_fields) == (self.fields, self.request_fields):
            return False
        self.learned += 1
        self.plan, self.fields, self.request_fields = plan, fields, request_fields
        self.generic = generic_decoder(plan, fields)
        self.typed = typed_decoder(plan, fields, request_fields)
        self.heads.clear()
        return True

    def _typed_keys(self, typed: Typed, requests: Sequence[Any]) -> list[int]:
        """Keys of typed requests. Their parameters are few and come again, so that part of a key
        is remembered."""
        flat: list[list[str]] = []
        heads = self.heads
        for values in map(typed.values, requests):
            *scalars, messages = values if typed.names else (values,)
            kinds = tuple(scalars)
            one = [heads.get(kinds) or self._head(typed.names, kinds)]
            for message in messages:
                one += (message.role, message.content)
            flat.append(one)
        for name, attribute in typed.inert.items():
            absent = list(map(attrgetter(attribute), requests)).count(UNSET)
            self.keyer.seen[name] = self.keyer.seen.get(name, 0) + len(requests) - absent
        return flat_keys(flat)

    def _head(self, names: Sequence[str], scalars: tuple[Any, ...]) -> str:
        pairs = zip(names, scalars, strict=True)
        found = head({name: plain(value) for name, value in pairs if value is not UNSET})
        if len(self.heads) < MAX_HEADS:
            self.heads[scalars] = found
        return found


def _decoded(decoder: msgspec.json.Decoder[Any], text: bytes) -> list[Any] | None:
    try:
        return decoder.decode_lines(text)
    except _ERRORS:
        return None


def _columns(
    plan: Plan,
    records: Sequence[Any],
    keys: list[int],
    numbers: Sequence[int],
    offsets: Sequence[int],
) -> Part | None:
    """Columns of decoded records; None if one of them is unusual after all."""
    replies: list[Reply] = [record.response for record in records]
    answers = [reply.choices[0].message.content for reply in replies]
    times = _times(plan, records)
    if times is None or not all(keys) or _any_redacted(answers):
        return None
    own = [[getattr(record, f"own_{name}") for record in records] for name in NAMES]
    return [
        keys,
        answers,
        _ids([reply.id for reply in replies]),
        offsets,
        numbers,
        *times,
        [reply.created for reply in replies],
        _cached([reply.usage for reply in replies]),
        _own(own[0], [reply.system_fingerprint for reply in replies]),
        own[1],
        _own(own[2], [reply.provider for reply in replies]),
        _own(own[3], [reply.model for reply in replies]),
    ]


def _own(own: list[Any], other: list[Any]) -> list[Any]:
    """The record's own field, the reply's where the record has none."""
    if set(map(type, own)) == {type(None)}:
        return other
    return [o if mine is None else mine for mine, o in zip(own, other, strict=True)]


def _any_redacted(answers: Sequence[str]) -> bool:
    if min(map(len, answers)) < _SHORTEST_PLAIN:
        return any(map(redacted, answers))
    return any("(litellm_truncated" in answer for answer in answers)


def _ids(ids: list[Any]) -> list[Any]:
    """Reply ids as :func:`label` gives them, in one go where all are proper strings."""
    if set(map(type, ids)) == {str}:
        stripped = list(map(str.strip, ids))
        if "" not in stripped:
            return stripped
    return [label(one) for one in ids]


def _cached(usages: Sequence[Usage | None]) -> list[int]:
    out = []
    for usage in usages:
        details = None if usage is None else usage.prompt_tokens_details
        found = None if details is None else details.cached_tokens
        out.append(found if found is not None and found < 2**62 else ABSENT)
    return out


def _times(plan: Plan, records: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]] | None:
    """Start, end and duration in seconds; None where a null field hides another one."""
    nothing: list[Any] = [None] * len(records)
    starts = ends = tooks = nothing
    if plan.start is not None:
        starts = [record.start for record in records]
        if not plan.only_start and None in starts:
            return None
    if plan.end is not None:
        ends = [record.end for record in records]
    if plan.took is not None and plan.start is not None:
        tooks = [record.took for record in records]
        if not set(map(type, tooks)) <= {int, float} or not min(tooks) >= 0:
            found = [number(took) for took in tooks]
            tooks = [None if took is None or not took >= 0 else took for took in found]
        if plan.took_per_s != 1.0:
            tooks = [None if took is None else took / plan.took_per_s for took in tooks]
    return starts, ends, tooks
