"""Names and classes of characters that look like nothing, or like another character.

Classes follow the Unicode Character Database as Python's ``unicodedata`` ships it; the control
names are the aliases of the Unicode ``NameAliases.txt`` file, which ``unicodedata.name`` lacks.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from itertools import groupby
from typing import Final

CONTROL_NAMES: Final[dict[int, str]] = {
    0x00: "NULL",
    0x07: "BELL",
    0x08: "BACKSPACE",
    0x09: "CHARACTER TABULATION",
    0x0A: "LINE FEED",
    0x0B: "LINE TABULATION",
    0x0C: "FORM FEED",
    0x0D: "CARRIAGE RETURN",
    0x1A: "SUBSTITUTE",
    0x1B: "ESCAPE",
    0x7F: "DELETE",
    0x85: "NEXT LINE",
}

BOM: Final = "\ufeff"
ZERO_WIDTH: Final = frozenset(
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u200b\u200c\u200d"
    "\u2060\u2061\u2062\u2063\u2064\u3164\ufe0e\ufe0f\ufeff\uffa0"
) | frozenset(chr(c) for c in range(0xE0000, 0xE0080))
BIDI: Final = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
ODD_SPACES: Final = frozenset(
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
)
NEWLINES: Final[tuple[tuple[str, str], ...]] = (
    ("CRLF", "\r\n"),
    ("LF", "\n"),
    ("CR", "\r"),
    ("NEL", "\x85"),
    ("LS", "\u2028"),
    ("PS", "\u2029"),
)
TYPOGRAPHIC: Final[dict[str, str]] = {
    "\u2018": "'",
    "\u2019": "'",
    "\u201a": "'",
    "\u201b": "'",
    "\u201c": '"',
    "\u201d": '"',
    "\u201e": '"',
    "\u2010": "-",
    "\u2011": "-",
    "\u2012": "-",
    "\u2013": "-",
    "\u2014": "-",
    "\u2212": "-",
    "\u2026": "...",
}

_LOOK_ALIKE: Final = (
    # Cyrillic and Greek letters whose usual glyph is that of a Latin letter.
    ("\u0410\u0391", "A"),
    ("\u0412\u0392", "B"),
    ("\u0421\u03f9", "C"),
    ("\u0415\u0395", "E"),
    ("\u041d\u0397", "H"),
    ("\u0406\u0399\u04c0", "I"),
    ("\u0408", "J"),
    ("\u041a\u039a", "K"),
    ("\u041c\u039c", "M"),
    ("\u039d", "N"),
    ("\u041e\u039f", "O"),
    ("\u0420\u03a1", "P"),
    ("\u0405", "S"),
    ("\u0422\u03a4", "T"),
    ("\u0425\u03a7", "X"),
    ("\u04ae\u03a5", "Y"),
    ("\u0396", "Z"),
    ("\u0430\u03b1", "a"),
    ("\u0441\u03f2", "c"),
    ("\u0501", "d"),
    ("\u0435", "e"),
    ("\u04bb", "h"),
    ("\u0456\u03b9", "i"),
    ("\u0458\u03f3", "j"),
    ("\u04cf", "l"),
    ("\u043e\u03bf", "o"),
    ("\u0440\u03c1", "p"),
    ("\u051b", "q"),
    ("\u0455", "s"),
    ("\u03bd", "v"),
    ("\u051d", "w"),
    ("\u0445", "x"),
    ("\u0443", "y"),
    ("\u037e", ";"),
)
HOMOGLYPHS: Final[dict[str, str]] = {
    char: latin for chars, latin in _LOOK_ALIKE for char in chars
} | {chr(c): chr(c - 0xFEE0) for c in range(0xFF01, 0xFF5F)}


def char_class(chars: Iterable[str]) -> str:
    """The inside of a regular expression's ``[...]``, runs written as ranges (much faster)."""
    codes = sorted(map(ord, chars))
    out = []
    for _, run in groupby(enumerate(codes), key=lambda pair: pair[1] - pair[0]):
        items = [code for _, code in run]
        out.append(re.escape(chr(items[0])))
        if len(items) > 1:
            out.append("-" + re.escape(chr(items[-1])))
    return "".join(out)


def is_escaped_byte(char: str) -> bool:
    """A byte that is not valid UTF-8, as ``surrogateescape`` decodes it (U+DC80 to U+DCFF)."""
    return "\udc80" <= char <= "\udcff"


def char_name(char: str) -> str:
    """``U+200B ZERO WIDTH SPACE``; an undecodable byte as ``byte 0xE9 (not UTF-8)``."""
    code = ord(char)
    if is_escaped_byte(char):
        return f"byte 0x{code - 0xDC00:02X} (not UTF-8)"
    name = CONTROL_NAMES.get(code) or unicodedata.name(char, "")
    if not name:
        name = "CONTROL" if unicodedata.category(char) == "Cc" else "(no name)"
    return f"U+{code:04X} {name}"


def worth_naming(char: str) -> bool:
    """Everything but printable ASCII: a reader cannot tell it from its glyph alone."""
    return not ("\x21" <= char <= "\x7e")


def names_of(text: str, limit: int = 16) -> tuple[str, ...]:
    """Names of the distinct characters of ``text`` that its glyphs do not tell, in order."""
    seen = dict.fromkeys(char for char in text[:4096] if worth_naming(char))
    return tuple(char_name(char) for char in list(seen)[:limit])


def visible(text: str, limit: int = 160) -> str:
    """``text`` on one line with every invisible, control or undecodable character escaped."""
    out = [_shown(char) for char in text[:limit]]
    return "".join(out) + ("\u2026" if len(text) > limit else "")


def _shown(char: str) -> str:
    if char == "\n":
        return "\\n"
    if char == "\r":
        return "\\r"
    if char == "\t":
        return "\\t"
    if is_escaped_byte(char):
        return f"\\x{ord(char) - 0xDC00:02x}"
    hidden = char in ZERO_WIDTH or char in BIDI or char in ODD_SPACES
    if hidden or unicodedata.category(char)[0] == "C" or unicodedata.category(char) in ("Zl", "Zp"):
        return f"<U+{ord(char):04X}>"
    return char
