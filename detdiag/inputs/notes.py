"""Notes on a pair of texts: the kinds of characters that one has and the other has not."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from detdiag.inputs.characters import (
    BIDI,
    BOM,
    HOMOGLYPHS,
    NEWLINES,
    ODD_SPACES,
    ZERO_WIDTH,
    char_name,
)

_RARE = re.compile("[^ -~]")
_UNDECODED = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True, slots=True)
class Note:
    """``code`` is stable (``bom``, ``newlines``, ``zero-width`` ...); ``text`` is for people."""

    code: str
    text: str


def text_notes(a: str, b: str) -> tuple[Note, ...]:
    """What kind of difference it is, in words; only what the two sides do not share."""
    makers = (_bom, _invalid, _normal_form, _newlines, _ends, _classes, _spaces_only)
    return tuple(note for make in makers for note in make(a, b))


def newline_kinds(text: str) -> dict[str, int]:
    """How many of each newline kind (``CRLF`` counts once, not as a CR and an LF)."""
    counts = {name: text.count(mark) for name, mark in NEWLINES}
    counts["LF"] -= counts["CRLF"]
    counts["CR"] -= counts["CRLF"]
    return {name: count for name, count in counts.items() if count}


def _bom(a: str, b: str) -> Iterator[Note]:
    if a.startswith(BOM) != b.startswith(BOM):
        side = "a" if a.startswith(BOM) else "b"
        yield Note("bom", f"only {side} starts with a byte-order mark (U+FEFF, bytes EF BB BF)")


def _invalid(a: str, b: str) -> Iterator[Note]:
    for side, text in (("a", a), ("b", b)):
        found = None if text.isascii() else _UNDECODED.search(text)
        if found is None:
            continue
        at = found.start()
        offset = len(text[:at].encode("utf-8", "surrogateescape"))
        raw = text.encode("utf-8", "surrogateescape")
        yield Note(
            "invalid-utf8",
            f"{side} is not valid UTF-8 at byte {offset} ({char_name(text[at])[:9]})" + _guess(raw),
        )


def _guess(raw: bytes) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "; it looks like UTF-16"
    high = [byte for byte in raw if byte >= 0x80]
    if high and sum(byte >= 0xC0 for byte in high) >= len(high) / 2:
        return "; it looks like Latin-1 or Windows-1252"
    return ""


def _normal_form(a: str, b: str) -> Iterator[Note]:
    if a.isascii() and b.isascii():
        return
    forms = [_form(a), _form(b)]
    if forms[0] != forms[1]:
        yield Note("normal-form", f"a is in {forms[0]}, b in {forms[1]}")
    if unicodedata.normalize("NFC", a) == unicodedata.normalize("NFC", b):
        yield Note("nfc-equal", "the two are canonically equivalent (equal after NFC)")


def _form(text: str) -> str:
    if text.isascii():
        return "NFC"
    composed = unicodedata.is_normalized("NFC", text)
    decomposed = unicodedata.is_normalized("NFD", text)
    if composed:
        return "NFC"
    return "NFD" if decomposed else "neither NFC nor NFD"


def _newlines(a: str, b: str) -> Iterator[Note]:
    kinds_a, kinds_b = newline_kinds(a), newline_kinds(b)
    if set(kinds_a) != set(kinds_b) and kinds_a and kinds_b:
        yield Note("newlines", f"newlines: a has {_listed(kinds_a)}, b has {_listed(kinds_b)}")


def _listed(kinds: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in kinds.items())


def _ends(a: str, b: str) -> Iterator[Note]:
    if a.rstrip("\r\n") == b.rstrip("\r\n"):
        tails = (len(a) - len(a.rstrip("\r\n")), len(b) - len(b.rstrip("\r\n")))
        yield Note(
            "trailing-newline",
            f"they differ in trailing newline characters only (a {tails[0]}, b {tails[1]})",
        )
    elif a.rstrip() == b.rstrip():
        yield Note("trailing-space", "they differ in trailing white space only")
    if a.lstrip() == b.lstrip() and a.rstrip() != b.rstrip():
        yield Note("leading-space", "they differ in leading white space only")


def _classes(a: str, b: str) -> Iterator[Note]:
    rare_a, rare_b = _rare(a), _rare(b)
    groups = (
        ("zero-width", "zero-width characters", lambda c: c in ZERO_WIDTH),
        ("bidi", "bidirectional controls", lambda c: c in BIDI),
        ("odd-space", "spaces that are not U+0020", lambda c: c in ODD_SPACES),
        ("homoglyph", "letters that look like Latin ones", lambda c: c in HOMOGLYPHS),
        ("control", "control characters", _is_control),
    )
    for code, words, belongs in groups:
        for side, mine, other in (("a", rare_a, rare_b), ("b", rare_b, rare_a)):
            extra = [c for c in mine if belongs(c) and mine[c] > other.get(c, 0)]
            if extra:
                shown = ", ".join(f"{char_name(c)} x{mine[c] - other.get(c, 0)}" for c in extra[:4])
                yield Note(code, f"{side} has more {words}: {shown}")


def _rare(text: str) -> dict[str, int]:
    """Counts of the characters outside printable ASCII."""
    counts = Counter(_RARE.findall(text))
    return {char: counts[char] for char in sorted(counts)}


def _is_control(char: str) -> bool:
    return unicodedata.category(char) == "Cc" and char not in "\n\r\x85"


def _spaces_only(a: str, b: str) -> Iterator[Note]:
    if "".join(a.split()) == "".join(b.split()) and a.strip() != b.strip():
        yield Note("white-space", "they differ in white space only")
    elif a.casefold() == b.casefold():
        yield Note("case", "they differ in letter case only")
