"""Byte diff of two texts, with offsets, the names of invisible characters and what would fold."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from detdiag.inputs.align import Span, changed_spans
from detdiag.inputs.characters import names_of, visible
from detdiag.inputs.folding import equal_after
from detdiag.inputs.notes import Note, text_notes

MAX_HUNKS: Final = 200


@dataclass(frozen=True, slots=True)
class Hunk:
    """One change. Offsets are 0-based bytes and characters; lines and columns 1-based.

    ``a`` and ``b`` are the characters on each side ("" for nothing); undecodable bytes are
    U+DC80..U+DCFF as ``surrogateescape`` has them.
    """

    offset_a: int
    offset_b: int
    char_a: int
    char_b: int
    line_a: int
    col_a: int
    line_b: int
    col_b: int
    a: str
    b: str
    names: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON form; texts on one line with invisible characters escaped and clipped."""
        return {
            "offset_a": self.offset_a,
            "offset_b": self.offset_b,
            "char_a": self.char_a,
            "char_b": self.char_b,
            "line_a": self.line_a,
            "col_a": self.col_a,
            "line_b": self.line_b,
            "col_b": self.col_b,
            "a": visible(self.a),
            "b": visible(self.b),
            "names": list(self.names),
        }


@dataclass(frozen=True, slots=True)
class TextDiff:
    """``equal`` speaks of bytes. ``hunks`` is empty only if the bytes are equal.

    ``hunks_left_out`` counts the changes beyond the cap, whole lines as one.
    """

    equal: bool
    bytes_a: int
    bytes_b: int
    sha256_a: str
    sha256_b: str
    hunks: tuple[Hunk, ...] = ()
    hunks_left_out: int = 0
    notes: tuple[Note, ...] = ()
    equal_after: tuple[str, ...] = ()

    def to_dict(self, left: str = "a", right: str = "b") -> dict[str, Any]:
        """The report's ``input_diff`` table."""
        return {
            "left": left,
            "right": right,
            "equal": self.equal,
            "bytes_a": self.bytes_a,
            "bytes_b": self.bytes_b,
            "sha256_a": self.sha256_a,
            "sha256_b": self.sha256_b,
            "hunks": [hunk.to_dict() for hunk in self.hunks],
            "hunks_left_out": self.hunks_left_out,
            "notes": [note.text for note in self.notes],
            "equal_after": list(self.equal_after),
        }


def as_bytes(text: str | bytes) -> bytes:
    """UTF-8 bytes; lone surrogates (legal in JSON escapes) in their three-byte form."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def diff_texts(a: str | bytes, b: str | bytes, *, max_hunks: int = MAX_HUNKS) -> TextDiff:
    """Compare as bytes; never raises on content, any two byte strings are comparable."""
    raw_a, raw_b = as_bytes(a), as_bytes(b)
    sha_a, sha_b = (hashlib.sha256(raw).hexdigest() for raw in (raw_a, raw_b))
    if raw_a == raw_b:
        return TextDiff(True, len(raw_a), len(raw_b), sha_a, sha_b)
    text_a = raw_a.decode("utf-8", "surrogateescape")
    text_b = raw_b.decode("utf-8", "surrogateescape")
    spans = changed_spans(text_a, text_b, max_hunks)
    return TextDiff(
        False,
        len(raw_a),
        len(raw_b),
        sha_a,
        sha_b,
        hunks=tuple(_hunks(text_a, text_b, spans[:max_hunks])),
        hunks_left_out=max(0, len(spans) - max_hunks),
        notes=text_notes(text_a, text_b),
        equal_after=equal_after(text_a, text_b),
    )


class _Cursor:
    """Byte offset, line and column of increasing character positions, in one pass."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.char = 0
        self.byte = 0
        self.line = 1
        self.line_start = 0

    def move(self, char: int) -> tuple[int, int, int]:
        part = self.text[self.char : char]
        self.byte += len(part.encode("utf-8", "surrogateescape"))
        newlines = part.count("\n")
        if newlines:
            self.line += newlines
            self.line_start = self.char + part.rindex("\n") + 1
        self.char = char
        return self.byte, self.line, char - self.line_start + 1


def _hunks(a: str, b: str, spans: list[Span]) -> Iterator[Hunk]:
    cursor_a, cursor_b = _Cursor(a), _Cursor(b)
    for i1, i2, j1, j2 in spans:
        byte_a, line_a, col_a = cursor_a.move(i1)
        byte_b, line_b, col_b = cursor_b.move(j1)
        old, new = a[i1:i2], b[j1:j2]
        yield Hunk(
            byte_a,
            byte_b,
            i1,
            j1,
            line_a,
            col_a,
            line_b,
            col_b,
            old,
            new,
            _names(a, i2, old, new),
        )


def _names(a: str, end: int, old: str, new: str) -> tuple[str, ...]:
    """Names of both sides; the base character too where only a combining mark changed."""
    names = dict.fromkeys(names_of(old) + names_of(new))
    first = (new or old)[:1]
    if first and unicodedata.combining(first) and end:
        names = dict.fromkeys((f"after {visible(a[end - 1])!r}", *names))
    return tuple(names)
