"""JSON read without losing what a diff needs: key order, duplicate keys and number spellings."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from detdiag.errors import DetdiagError


class JsonObject(dict[str, Any]):
    """A JSON object in file order; ``duplicates`` lists keys that were written twice."""

    duplicates: tuple[str, ...] = ()


class Number(Decimal):
    """A JSON number with a fraction or an exponent, exact, with the text it was written as."""

    text: str

    def __new__(cls, text: str) -> Number:
        self = super().__new__(cls, text)
        self.text = text
        return self


def _object(pairs: list[tuple[str, Any]]) -> JsonObject:
    out = JsonObject(pairs)
    if len(out) < len(pairs):
        seen: set[str] = set()
        twice = [key for key, _ in pairs if key in seen or seen.add(key)]  # type: ignore[func-returns-value]
        out.duplicates = tuple(dict.fromkeys(twice))
    return out


def parse_json(text: str | bytes, path: str | Path | None = None) -> Any:
    """Decode; raise :class:`DetdiagError` with file and line. A leading BOM is skipped."""
    if isinstance(text, bytes):
        text = decode_utf8(text, path)
    try:
        return json.loads(
            text.removeprefix("\ufeff"), object_pairs_hook=_object, parse_float=Number
        )
    except json.JSONDecodeError as error:
        raise DetdiagError(f"not valid JSON: {error.msg}", path=path, line=error.lineno) from error
    except RecursionError as error:
        raise DetdiagError("JSON nested too deeply", path=path) from error
    except ValueError as error:  # an integer longer than Python converts
        raise DetdiagError(f"not valid JSON: {error}", path=path) from error


def decode_utf8(raw: bytes, path: str | Path | None = None) -> str:
    """UTF-8 text or one clear line that names the first bad byte and a likely encoding."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        tip = "it looks like Latin-1: convert it with iconv -f latin1 -t utf-8"
        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            tip = "it looks like UTF-16: convert it with iconv -f utf-16 -t utf-8"
        raise DetdiagError(
            f"not UTF-8: byte 0x{raw[error.start]:02X} at offset {error.start}",
            path=path,
            line=line,
            tip=tip,
        ) from error


def plain(value: Any) -> Any:
    """The same value in Python's own JSON types (numbers as ``float``)."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
