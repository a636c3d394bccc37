"""Alignment of two texts: common ends first, then lines, words and characters of what is left."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final

Span = tuple[int, int, int, int]
"""``a[i1:i2]`` became ``b[j1:j2]``."""

_MARKS: Final = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0900-\u0903"
    "\u093a-\u094f\u1ab0-\u1aff\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufe20-\ufe2f\ufeff"
)
"""Combining marks and joiners: part of the word they stand in, though not of ``\\w``."""
_WORDS = re.compile(rf"\s+|[\w{_MARKS}]+|[^\w\s]")
_MAX_CELLS: Final = 3_000_000_000
"""Bit-parallel cells for one alignment of pieces: about half a second."""
_QUICK_CELLS: Final = 40_000_000
_BAND: Final = 1024
"""Edits up to which two long sequences are aligned in a narrow band, whatever their length."""


def changed_spans(a: str, b: str, limit: int | None = None) -> list[Span]:
    """Spans of characters that differ, in order; empty only if the texts are equal.

    After ``limit`` spans the rest is left as the line or word level found it.
    """
    start = common_prefix(a, b)
    end = common_suffix(a, b, start)
    rough = _refine(a, b, (start, len(a) - end, start, len(b) - end), limit)
    return list(rough)


def common_prefix(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """Length of the common prefix, by bisection over slice comparisons (memcmp for strings)."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_suffix(a: Sequence[Hashable], b: Sequence[Hashable], prefix: int = 0) -> int:
    """Length of the common suffix that does not overlap the first ``prefix`` items."""
    low, high = 0, min(len(a), len(b)) - prefix
    while low < high:
        middle = (low + high + 1) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle - 1
    return low


def opcodes(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[Span] | None:
    """Changed spans of two sequences with the fewest edits; None when it would take too long."""
    from rapidfuzz.distance import Levenshtein

    start = common_prefix(a, b)
    end = common_suffix(a, b, start)
    inner_a, inner_b = a[start : len(a) - end], b[start : len(b) - end]
    if not inner_a or not inner_b:
        return [(start, len(a) - end, start, len(b) - end)] if inner_a or inner_b else []
    cells = len(inner_a) * len(inner_b)
    near = None
    if cells > _QUICK_CELLS:
        near = Levenshtein.distance(inner_a, inner_b, score_cutoff=_BAND)
        if near > _BAND and cells > _MAX_CELLS:
            return None
    return [
        (op.src_start + start, op.src_end + start, op.dest_start + start, op.dest_end + start)
        for op in Levenshtein.opcodes(inner_a, inner_b, score_hint=near)
        if op.tag != "equal"
    ]


def _refine(a: str, b: str, span: Span, limit: int | None) -> Iterator[Span]:
    """Lines, then words, then characters, each inside the spans that the coarser level left."""
    fine = 0
    for lines in _by_pieces(a, b, span, _lines):
        if limit is not None and fine > limit:
            yield lines
            continue
        for found in _joined(_inside(a, b, lines)):
            fine += 1
            yield found


def _inside(a: str, b: str, lines: Span) -> Iterator[Span]:
    for words in _by_pieces(a, b, lines, _WORDS.findall):
        yield from _characters(a, b, words)


def _characters(a: str, b: str, span: Span) -> list[Span]:
    i1, i2, j1, j2 = span
    size_a, size_b = i2 - i1, j2 - j1
    if not size_a or not size_b:
        return [span]
    found = opcodes(a[i1:i2], b[j1:j2])
    return [(i1 + p1, i1 + p2, j1 + q1, j1 + q2) for p1, p2, q1, q2 in found or []] or [span]


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _by_pieces(a: str, b: str, span: Span, split: Callable[[str], list[str]]) -> Iterator[Span]:
    i1, i2, j1, j2 = span
    if i1 == i2 or j1 == j2:
        if i1 != i2 or j1 != j2:
            yield span
        return
    pieces_a, pieces_b = split(a[i1:i2]), split(b[j1:j2])
    found = opcodes(pieces_a, pieces_b)
    if found is None:
        yield span
        return
    starts_a, starts_b = _starts(pieces_a, i1), _starts(pieces_b, j1)
    for p1, p2, q1, q2 in found:
        if p2 - p1 != q2 - q1:
            yield starts_a[p1], starts_a[p2], starts_b[q1], starts_b[q2]
            continue
        for step in range(p2 - p1):  # a replaced block pairs its pieces one to one
            p, q = p1 + step, q1 + step
            yield starts_a[p], starts_a[p + 1], starts_b[q], starts_b[q + 1]


def _starts(pieces: Sequence[str], offset: int) -> list[int]:
    starts = [offset]
    for piece in pieces:
        offset += len(piece)
        starts.append(offset)
    return starts


def _joined(spans: Iterator[Span]) -> Iterator[Span]:
    """Spans that touch become one: a replaced word is one change, not five."""
    held: Span | None = None
    for span in spans:
        if held is not None and span[0] == held[1] and span[2] == held[3]:
            held = (held[0], span[1], held[2], span[3])
            continue
        if held is not None:
            yield held
        held = span
    if held is not None:
        yield held
