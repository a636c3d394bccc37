"""Records of a log as columns: about a hundred bytes each, whatever the size of the bodies."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import add
from typing import Any, Final, NamedTuple

import orjson
import xxhash

from detdiag.evidence.adapters.shape import epoch_s, label

NUMBERS: Final[Mapping[str, str]] = {
    "request": "Q",
    "output": "Q",
    "reply_id": "Q",
    "offset": "Q",
    "line": "Q",
    "start_s": "d",
    "end_s": "d",
    "cached": "q",
}
"""Column name to array type. ``offset`` is the byte where the record's line starts."""

NAMES: Final = ("system_fingerprint", "replica", "provider", "model_reported")
"""Columns of interned strings; code 0 is "not recorded"."""

MAX_BROKEN: Final = 1000
ABSENT: Final = -1


class Row(NamedTuple):
    """One record before its block is closed. ``answer`` is what is compared; times are as logged.

    ``took_s`` after a readable ``start`` stands in for a missing end; ``created`` (the reply's own
    time) for a start that is missing or cannot be read."""

    request: int
    answer: Any
    reply_id: Any
    offset: int
    line: int
    start: Any
    end: Any
    took_s: float | None
    created: Any
    cached: int
    system_fingerprint: Any
    replica: Any
    provider: Any
    model_reported: Any


@dataclass(slots=True)
class Columns:
    """One block of records. ``words`` maps a name column's strings to their codes; ``size`` is the
    block's length in bytes."""

    numbers: dict[str, array[Any]] = field(
        default_factory=lambda: {name: array(code) for name, code in NUMBERS.items()}
    )
    codes: dict[str, array[int]] = field(
        default_factory=lambda: {name: array("I") for name in NAMES}
    )
    words: dict[str, dict[str, int]] = field(
        default_factory=lambda: {name: {"": 0} for name in NAMES}
    )
    size: int = 0
    lines: int = 0
    records: int = 0
    broken: list[tuple[int, str]] = field(default_factory=list)
    broken_count: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    inert: dict[str, int] = field(default_factory=dict)

    def add_broken(self, line: int, why: str) -> None:
        self.broken_count += 1
        if len(self.broken) < MAX_BROKEN:
            self.broken.append((line, why))

    def leave_out(self, why: str) -> None:
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def extend(self, fields: Sequence[Sequence[Any]]) -> None:
        """Add records, given as one sequence for each field of :class:`Row`.

        Called with few records at a time, while their texts are still in the cache."""
        request, answer, reply_id, offset, line, start, end, took, created, cached = fields[:10]
        start_s = _all_seconds(start)
        end_s = _all_ends(end, took, start_s)
        if math.isnan(sum(start_s)):
            start_s = [s if s == s else _seconds(c) for s, c in zip(start_s, created, strict=True)]
        values: list[Iterable[Any]] = [request, _all_keys(answer), _all_keys(reply_id)]
        values += [offset, line, start_s, end_s, cached]
        for column, found in zip(self.numbers.values(), values, strict=True):
            column.extend(found)
        for name, words in zip(NAMES, fields[10:], strict=True):
            self.codes[name].extend(_interned(words, self.words[name]))
        self.records += len(request)


def _interned(words: Sequence[Any], table: dict[str, int]) -> Sequence[int]:
    """Codes of names; ``table`` grows by the new ones."""
    kinds = set(map(type, words))
    if kinds == _ONLY_TEXT:
        try:
            return [table[word] for word in words]
        except KeyError:
            pass
    elif kinds == _ONLY_NULL:
        return [0] * len(words)
    names = [label(word) or "" for word in words]
    return [table.setdefault(name, len(table)) for name in names]


_ONLY_TEXT: Final = {str}
_ONLY_NULL: Final = {type(None)}


def _all_seconds(values: Sequence[Any]) -> list[float]:
    """Times of a column; the usual case, ISO 8601 with a zone, without a call for each."""
    try:
        moments = list(map(datetime.fromisoformat, values))
        if None not in [moment.tzinfo for moment in moments]:
            return [moment.timestamp() for moment in moments]
    except (ValueError, TypeError, OverflowError):
        pass
    return [_seconds(value) for value in values]


def _seconds(value: Any) -> float:
    if type(value) is float and 0 < value < 1e11:
        return value
    found = None if value is None else epoch_s(value)
    return math.nan if found is None else found


def _all_ends(end: Sequence[Any], took: Sequence[Any], start_s: Sequence[float]) -> list[float]:
    """Ends; where one is missing or cannot be read, the start and the duration."""
    if end.count(None) == len(end) and None not in took:
        return list(map(add, start_s, took))
    found = [math.nan if e is None else _seconds(e) for e in end]
    return [
        s + t if e != e and t is not None else e
        for e, t, s in zip(found, took, start_s, strict=True)
    ]


def _all_keys(values: Sequence[Any]) -> list[int]:
    try:
        return [key or 1 for key in map(xxhash.xxh3_64_intdigest, map(str.encode, values))]
    except (TypeError, UnicodeEncodeError):
        return [value_key(value) for value in values]


def value_key(value: Any) -> int:
    """64-bit key of a JSON value (a text, a list of token ids, a reply id); 0 only for null."""
    if value is None:
        return 0
    try:
        raw = value.encode() if type(value) is str else orjson.dumps(value)
    except (TypeError, ValueError):
        raw = repr(value).encode("utf-8", "surrogatepass")
    return xxhash.xxh3_64_intdigest(raw) or 1
