"""Lenient readers for JSON that somebody else's tool wrote: the asked type, or nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import orjson

_EMPTY: Final[Mapping[str, Any]] = {}


def loads(raw: bytes | str) -> Any:
    """Decode JSON; raise ``ValueError`` for anything that is not JSON.

    The fallback accepts what real writers emit and the fast parser refuses: NaN, a byte order
    mark, lone surrogates, integers beyond 64 bits.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass
    text = raw.decode("utf-8-sig", "surrogatepass") if isinstance(raw, bytes) else raw
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def loads_or_none(raw: Any) -> Any:
    """The decoded value of a JSON string; None when it is not one."""
    if not isinstance(raw, (str, bytes)):
        return None
    try:
        return loads(raw)
    except (ValueError, UnicodeError):
        return None


def maybe_json(value: Any) -> Any:
    """A string that holds a JSON object or array, decoded; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        decoded = loads_or_none(value)
        return value if decoded is None else decoded
    return value


def obj(value: Any) -> Mapping[str, Any]:
    """``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, Mapping) else _EMPTY


def arr(value: Any) -> Sequence[Any]:
    """``value`` if it is a JSON array, else an empty one."""
    return value if isinstance(value, (list, tuple)) else ()


def dig(value: Any, *path: str | int) -> Any:
    """The value at ``path``, None where a step is missing or of another type."""
    for step in path:
        if isinstance(step, int):
            items = arr(value)
            value = items[step] if -len(items) <= step < len(items) else None
        else:
            value = obj(value).get(step)
    return value


def first(source: Any, *names: str) -> Any:
    """The first of ``names`` that ``source`` holds with a value other than null."""
    mapping = obj(source)
    for name in names:
        if mapping.get(name) is not None:
            return mapping[name]
    return None


def text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def label(value: Any) -> str | None:
    """A non-empty scalar as a string: a name for a replica, a model, a fingerprint."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    return str(value).strip() or None


def number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def integer(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 19:
        return int(value)
    as_float = number(value)
    if as_float is None or not math.isfinite(as_float) or as_float != int(as_float):
        return None
    return int(value)


def ints(value: Any) -> tuple[int, ...] | None:
    """A non-empty array of integers; None for anything else."""
    if not isinstance(value, (list, tuple)) or not value:
        return None
    if any(isinstance(v, bool) or not isinstance(v, int) for v in value):
        return None
    return tuple(value)


def logprob(value: Any) -> float | None:
    """A natural-log probability as sent; None for null and for the -9999 that servers send in
    place of a value they did not compute (OpenAI and vLLM)."""
    found = number(value)
    return None if found is None or found <= -9999.0 or math.isnan(found) else found


_UNIT_BY_SIZE: Final = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))


def epoch_s(value: Any) -> float | None:
    """Seconds since 1970 from ISO 8601 or from a number of s, ms, us or ns; None otherwise."""
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, str):
        return _epoch_of_string(value.strip())
    found = number(value)
    if found is None or not math.isfinite(found) or found <= 0:
        return None
    for size, per_second in _UNIT_BY_SIZE:
        if found >= size:
            return found / per_second
    return found


def _epoch_of_string(value: str) -> float | None:
    if value[4:5] != "-":
        try:
            return epoch_s(float(value))
        except ValueError:
            pass
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def headers(value: Any) -> dict[str, str]:
    """Header names in lower case to values, from an object or from HAR's name/value pairs."""
    found: dict[str, str] = {}
    if isinstance(value, Mapping):
        for name, content in value.items():
            one = label(content[0] if isinstance(content, list) and content else content)
            if one is not None:
                found[str(name).lower()] = one
    for pair in arr(value):
        name, one = label(dig(pair, "name")), label(dig(pair, "value"))
        if name is not None and one is not None:
            found[name.lower()] = one
    return found


def content_text(value: Any) -> str | None:
    """The text of a message's content: a string, or the text parts of a list, joined."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return text(first(value, "text", "content", "value"))
    if not isinstance(value, (list, tuple)):
        return None
    parts = [content_text(part) for part in value]
    found = [part for part in parts if part is not None]
    return "".join(found) if found else None
