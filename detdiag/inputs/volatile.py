"""Clocks, ids and counters in a prompt: found by pattern, and by comparing renders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from detdiag.inputs.align import changed_spans

VolatileKind = Literal["clock", "date", "epoch", "uuid", "id", "address", "counter", "varies"]

_DATE = r"(?:19|20)\d\d-[01]\d-[0-3]\d"
_TIME = r"[0-2]?\d:[0-5]\d(?::[0-5]\d(?:[.,]\d+)?)?"
_ZONE = r"(?:\s?(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?"
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    r"|Sep(?:t(?:ember)?)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_PATTERNS: Final[tuple[tuple[VolatileKind, re.Pattern[str]], ...]] = (
    ("uuid", re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")),
    ("clock", re.compile(rf"\b{_DATE}[T ]{_TIME}{_ZONE}")),
    ("clock", re.compile(rf"\b\d{{1,2}} {_MONTH} (?:19|20)\d\d,? {_TIME}{_ZONE}")),
    ("clock", re.compile(rf"\b{_TIME}{_ZONE}(?:\s?[AaPp]\.?[Mm]\b)?")),
    ("date", re.compile(rf"\b{_DATE}\b")),
    ("date", re.compile(r"\b[0-3]?\d[./][01]?\d[./](?:19|20)\d\d\b")),
    (
        "date",
        re.compile(rf"\b(?:\d{{1,2}}(?:st|nd|rd|th)? )?{_MONTH}(?: \d{{1,2}},?)? (?:19|20)\d\d\b"),
    ),
    ("address", re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")),
    ("epoch", re.compile(r"(?<![\w.])1[4-9]\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d+)?(?![\w.]*\w)")),
    (
        "id",
        re.compile(
            r"\b(?:req|run|call|chatcmpl|msg|sess|session|trace|span|id)[_-][A-Za-z0-9]{8,}\b"
        ),
    ),
    ("id", re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{12,64}\b")),
    ("id", re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b")),  # ULID: Crockford base 32
    (
        "counter",
        re.compile(
            r"(?i)\b(?:attempt|retry|request|call|turn|step|seq(?:uence)?|run|iteration|nonce"
            r"|session|count(?:er)?)\s*(?:no\.?|number|id)?\s*[#:=]?\s*\d+\b"
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Volatile:
    """``text[start:end]`` (characters, 0-based) is of a kind that changes from call to call."""

    kind: VolatileKind
    start: int
    end: int
    text: str
    values: tuple[str, ...] = ()
    """What stood there in each render, where renders were compared."""

    def to_dict(self) -> dict[str, Any]:
        out = {"kind": self.kind, "start": self.start, "end": self.end, "text": self.text}
        return out | ({"values": list(self.values)} if self.values else {})


def find_volatile(text: str) -> tuple[Volatile, ...]:
    """Spans of one text that look like a clock, an id or a counter; none overlap."""
    taken: list[Volatile] = []
    for kind, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            start, end = match.span()
            if not any(start < other.end and other.start < end for other in taken):
                taken.append(Volatile(kind, start, end, match[0]))
    return tuple(sorted(taken, key=lambda found: found.start))


def compare_renders(texts: Sequence[str]) -> tuple[Volatile, ...]:
    """Places where renders of one prompt, in order of time, differ from the first one.

    A place inside a span that :func:`find_volatile` knows takes that kind; numbers that rise by
    one are a ``counter``; other text ``varies``.
    """
    if len(set(texts)) < 2:
        return ()
    first = texts[0]
    spans = _merged(
        [
            _token_around(first, i1, i2)
            for other in dict.fromkeys(texts[1:])
            for i1, i2, _, _ in changed_spans(first, other, 50)
        ]
    )
    known = find_volatile(first)
    out = []
    for start, end in spans:
        inside = next((v for v in known if v.start < end and start < v.end), None)
        if inside is not None:
            start, end = min(start, inside.start), max(end, inside.end)
        values = tuple(_value(first, other, start, end) for other in texts)
        kind = inside.kind if inside is not None else _kind(values)
        out.append(Volatile(kind, start, end, first[start:end], values))
    return tuple(_distinct(out))


def _kind(values: Sequence[str]) -> VolatileKind:
    numbers = [int(v) for v in values if re.fullmatch(r"#?\d{1,18}", v) and v.isdigit()]
    if len(numbers) == len(values):
        steps = {y - x for x, y in zip(numbers, numbers[1:], strict=False)}
        if steps <= {0, 1} and 1 in steps:
            return "counter"
    kinds = {v.kind for value in values for v in find_volatile(value)}
    return kinds.pop() if len(kinds) == 1 else "varies"


def _token_around(text: str, start: int, end: int) -> tuple[int, int]:
    """Widen to the whole run of characters that ids, numbers and times are made of."""
    while start > 0 and _in_token(text[start - 1]):
        start -= 1
    while end < len(text) and _in_token(text[end]):
        end += 1
    return start, end


def _in_token(char: str) -> bool:
    return char.isalnum() or char in "-_:"


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def _value(first: str, other: str, start: int, end: int) -> str:
    """What stands in ``other`` where ``first[start:end]`` stands."""
    shift_start = shift_end = 0
    for i1, i2, _, j2 in changed_spans(first, other, 50):
        if i2 <= start and (i1, i2) != (start, end):
            shift_start = j2 - i2
        if i1 < end or (i1 == i2 == end):
            shift_end = j2 - i2
    return other[start + shift_start : end + shift_end]


def _distinct(items: list[Volatile]) -> Iterator[Volatile]:
    seen: set[tuple[int, int]] = set()
    for item in items:
        if (item.start, item.end) not in seen:
            seen.add((item.start, item.end))
            yield item
