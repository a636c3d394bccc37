"""Hostile text made harmless: invisible and control characters become visible escapes."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from typing import Any, Final

_SHOWN_SPACES: Final = frozenset(" \u3000")
_HIDDEN_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})


def is_hidden(char: str, *, keep: str = "") -> bool:
    """True for a character that a reader cannot see or that can reorder or hide its neighbours.

    Control, format (bidi, zero width, BOM), surrogate, private and unassigned characters, and
    every space but U+0020 and U+3000. ``keep`` lists characters to let through.
    """
    if " " <= char <= "~" or char in keep or char in _SHOWN_SPACES:
        return False
    return unicodedata.category(char) in _HIDDEN_CATEGORIES


def escape_of(char: str) -> str:
    r"""The visible spelling of one character: ``\n``, ``\x1b``, ``\u202e``, ``\U000e0041``."""
    simple = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char)
    if simple:
        return simple
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def pieces(text: str, *, keep: str = "") -> list[tuple[str, bool]]:
    """Split ``text`` into ``(part, is_escape)``; an escape part is already spelled visibly."""
    out: list[tuple[str, bool]] = []
    start = 0
    for place, char in enumerate(text):
        if is_hidden(char, keep=keep):
            if place > start:
                out.append((text[start:place], False))
            out.append((escape_of(char), True))
            start = place + 1
    if start < len(text):
        out.append((text[start:], False))
    return out


def visible(value: Any, *, keep: str = "") -> str:
    """``value`` as text with every hidden character spelled out; ``None`` becomes ``""``."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(part for part, _ in pieces(text, keep=keep))


_COMMAND: Final = re.compile(
    r"^(detdiag|python3?|pip|curl|vllm|export|docker|ollama|torch|sglang|llama-\w+|git|sha256sum)\b"
    r"|^[A-Z][A-Z0-9_]+=|^--?\w|^[\w.]+\(|^[\[{]|^[\w.]+ ?=|^from [\w.]+ import\b"
)


def looks_like_command(value: Any) -> bool:
    """True for something to paste into a shell or a program, False for advice in words."""
    return bool(_COMMAND.search(str(value).lstrip()))


def one_line(value: Any, limit: int | None = None) -> str:
    """:func:`visible`, cut in the middle to ``limit`` characters where one is given."""
    text = visible(value)
    if limit is None or len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def finite(value: Any) -> float | None:
    """``value`` as a finite float, else None (missing, text, NaN, infinite)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def json_ready(value: Any) -> Any:
    """A copy that strict JSON can hold: non-finite numbers become ``"NaN"``, ``"Infinity"``,
    ``"-Infinity"``; tuples become lists; keys become strings. Nothing else changes."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(k): json_ready(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(v) for v in value]
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return str(value)


_UNSAFE_IN_JSON: Final = re.compile(
    "[\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def _json_escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def dump_json(value: Any, *, indent: int | None = 2) -> str:
    """Strict JSON, keys in the given order; hidden characters only as ``\\uXXXX`` escapes.

    The text reads back to an equal object, is safe to print on a terminal and safe in UTF-8 even
    where a string holds a lone surrogate.
    """
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(
        json_ready(value), ensure_ascii=False, indent=indent, separators=separators, allow_nan=False
    )
    return _UNSAFE_IN_JSON.sub(_json_escape, text)


def dump_json_for_html(value: Any) -> str:
    """JSON for a ``<script>`` data block: no ``<``, ``>``, ``&``, U+2028 or U+2029 in it."""
    text = dump_json(value, indent=None)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text
