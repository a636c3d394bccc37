"""Foldings: which clean-up would make two texts equal, found by trying each."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import Final

from detdiag.inputs.align import common_prefix, common_suffix
from detdiag.inputs.characters import (
    BIDI,
    BOM,
    HOMOGLYPHS,
    ODD_SPACES,
    TYPOGRAPHIC,
    ZERO_WIDTH,
    char_class,
)

Folding = tuple[str, Callable[[str], str]]
_CONTEXT: Final = 512

_NEWLINE = re.compile("\r\n|[\r\x85\u2028\u2029]")
_ZERO_WIDTH = re.compile("[" + char_class(ZERO_WIDTH) + "]+")
_BIDI = re.compile("[" + char_class(BIDI) + "]+")
_ODD_SPACE = re.compile("[" + char_class(ODD_SPACES) + "]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f]+")
_TRAILING = re.compile(r"[ \t]+(?=\n|\r|\Z)")
_RUNS = re.compile(r"\s+")
_LOOK_ALIKE = re.compile("[" + "".join(map(re.escape, HOMOGLYPHS)) + "]")
_TYPOGRAPHIC = re.compile("[" + "".join(TYPOGRAPHIC) + "]")
_UNDECODED = re.compile("[\udc80-\udcff]")
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


def _mojibake(text: str) -> str:
    """Undo UTF-8 that was read as Latin-1 or Windows-1252 and encoded again."""
    if text.isascii():
        return text
    for wrong in ("cp1252", "latin-1"):
        try:
            return text.encode(wrong).decode("utf-8")
        except UnicodeError:
            continue
    return text


def _latin(text: str) -> str:
    """Bytes that are not UTF-8 read as Windows-1252 (a superset of Latin-1's letters)."""
    if text.isascii() or not _UNDECODED.search(text):
        return text
    raw = text.encode("utf-8", "surrogateescape")
    try:
        return raw.decode("cp1252")
    except UnicodeError:
        return raw.decode("latin-1")


def _escapes(text: str) -> str:
    decoded = _ESCAPE.sub(lambda m: chr(int(m[1], 16)), text) if "\\u" in text else text
    return decoded.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


FOLDINGS: Final[tuple[Folding, ...]] = (
    ("byte-order mark removed", lambda t: t.lstrip(BOM)),
    ("newlines as LF", lambda t: _NEWLINE.sub("\n", t)),
    ("zero-width characters removed", lambda t: t if t.isascii() else _ZERO_WIDTH.sub("", t)),
    ("bidi controls removed", lambda t: t if t.isascii() else _BIDI.sub("", t)),
    ("control characters removed", lambda t: _CONTROL.sub("", t)),
    ("spaces as U+0020", lambda t: t if t.isascii() else _ODD_SPACE.sub(" ", t)),
    ("NFC", lambda t: t if t.isascii() else unicodedata.normalize("NFC", t)),
    ("trailing white space removed", lambda t: _TRAILING.sub("", t).rstrip("\r\n \t")),
    ("Latin-1 bytes decoded as such", _latin),
    ("Latin-1 mix-up undone", _mojibake),
    ("quotes and dashes straightened", lambda t: _TYPOGRAPHIC.sub(lambda m: TYPOGRAPHIC[m[0]], t)),
    ("look-alike letters as Latin", lambda t: _LOOK_ALIKE.sub(lambda m: HOMOGLYPHS[m[0]], t)),
    ("\\u escapes decoded", _escapes),
    ("NFKC", lambda t: t if t.isascii() else unicodedata.normalize("NFKC", t)),
    ("white space runs collapsed", lambda t: _RUNS.sub(" ", t).strip()),
    ("case folded", str.casefold),
)
"""Tried in this order: what changes least first."""


def equal_after(a: str, b: str) -> tuple[str, ...]:
    """A smallest-found set of foldings that makes ``a`` and ``b`` equal; empty if none does.

    Single foldings are tried first, then all of them in order with the needless ones dropped.
    """
    if a == b or any(_is_binary(text) for text in (a, b)):
        return ()
    needed = _search(*_core(a, b))
    if needed and _folded(a, needed) != _folded(b, needed):
        needed = _search(a, b)  # the context around the change was too short
    return tuple(name for name, _ in needed)


def _is_binary(text: str) -> bool:
    return not text.isascii() and len(_UNDECODED.findall(text)) > len(text) * 0.3


def _core(a: str, b: str) -> tuple[str, str]:
    """The changed middle with some context: foldings are local, so the rest need not be folded."""
    start = common_prefix(a, b)
    end = common_suffix(a, b, start)
    start, end = max(0, start - _CONTEXT), max(0, end - _CONTEXT)
    return a[start : len(a) - end], b[start : len(b) - end]


def _search(a: str, b: str) -> list[Folding]:
    active: list[Folding] = []
    for name, fold in FOLDINGS:
        folded_a, folded_b = fold(a), fold(b)
        if folded_a == folded_b:
            return [(name, fold)]
        if folded_a != a or folded_b != b:
            active.append((name, fold))
    needed = _until_equal(a, b, active)
    for item in list(needed):
        fewer = [entry for entry in needed if entry is not item]
        if _folded(a, fewer) == _folded(b, fewer):
            needed = fewer
    return needed


def _until_equal(a: str, b: str, foldings: list[Folding]) -> list[Folding]:
    for index, (_, fold) in enumerate(foldings):
        a, b = fold(a), fold(b)
        if a == b:
            return foldings[: index + 1]
    return []


def _folded(text: str, foldings: list[Folding]) -> str:
    for _, fold in foldings:
        text = fold(text)
    return text
