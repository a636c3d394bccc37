"""Records of a log as columns: about a hundred bytes each, whatever the size of the bodies."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import xxhash

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

    def __len__(self) -> int:
        return len(self.numbers["request"])

    def append(
        self,
        *,
        request: int,
        output: int,
        reply_id: int,
        offset: int,
        line: int,
        start_s: float,
        end_s: float,
        cached: int,
        system_fingerprint: Any,
        replica: Any,
        provider: Any,
        model_reported: Any,
    ) -> None:
        """One record. Times are NaN and ``cached`` is ``ABSENT`` where not recorded."""
        numbers, codes, code = self.numbers, self.codes, self.code
        numbers["request"].append(request)
        numbers["output"].append(output)
        numbers["reply_id"].append(reply_id)
        numbers["offset"].append(offset)
        numbers["line"].append(line)
        numbers["start_s"].append(start_s)
        numbers["end_s"].append(end_s)
        numbers["cached"].append(cached)
        codes["system_fingerprint"].append(code("system_fingerprint", system_fingerprint))
        codes["replica"].append(code("replica", replica))
        codes["provider"].append(code("provider", provider))
        codes["model_reported"].append(code("model_reported", model_reported))

    def add_broken(self, line: int, why: str) -> None:
        self.broken_count += 1
        if len(self.broken) < MAX_BROKEN:
            self.broken.append((line, why))

    def leave_out(self, why: str) -> None:
        self.left_out[why] = self.left_out.get(why, 0) + 1

    def code(self, column: str, word: Any) -> int:
        """The code of a string in a name column; 0 for anything that is not a usable name."""
        if word is None or word == "":
            return 0
        table = self.words[column]
        found = table.get(word) if type(word) is str else None
        if found is None:
            found = table.setdefault(str(word), len(table))
        return found


def text_key(text: str) -> int:
    """64-bit key of an answer, never 0."""
    try:
        return xxhash.xxh3_64_intdigest(text.encode()) or 1
    except UnicodeEncodeError:
        return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass")) or 1


def value_key(value: Any) -> int:
    """64-bit key of a JSON value (a token id list, a reply id); 0 for null."""
    if value is None:
        return 0
    if type(value) is str:
        return text_key(value)
    try:
        return xxhash.xxh3_64_intdigest(orjson.dumps(value)) or 1
    except (TypeError, ValueError):
        return text_key(repr(value))
