"""The answer inside an output, for TARa@N: by regular expression, JSON path or last number."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from detdiag.errors import DetdiagError

Parser = Callable[[str], str | None]
"""Text to answer; None where it holds none."""

_NUMBER: Final = re.compile(
    r"(?<![\d.])[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
)
_FENCE: Final = re.compile(r"```[a-zA-Z]*\s*\n(.*?)```", re.S)
_STEP: Final = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


def parser_for(
    regex: str | None = None, json_path: str | None = None, last_number: bool = False
) -> tuple[Parser | None, str]:
    """The parser that the options ask for and its description; at most one may be given."""
    given = [regex is not None, json_path is not None, last_number]
    if sum(given) > 1:
        raise DetdiagError("give one of --answer-regex, --answer-json and --answer-last-number")
    if regex is not None:
        return by_regex(regex), f"regular expression {regex}"
    if json_path is not None:
        return by_json_path(json_path), f"JSON path {json_path}"
    return (last_number_in, "last number") if last_number else (None, "")


def by_regex(pattern: str) -> Parser:
    """First match: its first group if it has groups, else the whole; spaces around it cut."""
    try:
        compiled = re.compile(pattern, re.S)
    except re.error as error:
        raise DetdiagError(f"--answer-regex {pattern!r}: {error}") from error

    def parse(text: str) -> str | None:
        match = compiled.search(text)
        if match is None:
            return None
        found = match[1] if compiled.groups else match[0]
        return None if found is None else found.strip()

    return parse


def by_json_path(path: str) -> Parser:
    """``$.a.b[0]``: keys and indices into the JSON that the text is or holds."""
    body = path.removeprefix("$")
    steps = [m[1] if m[1] is not None else int(m[2]) for m in _STEP.finditer(body)]
    if "".join(m[0] for m in _STEP.finditer(body)) != body or (not steps and body):
        raise DetdiagError(
            f"--answer-json {path!r}: expected a path such as $.answer or items[0].id"
        )

    def parse(text: str) -> str | None:
        for value in _json_in(text):
            try:
                for step in steps:
                    value = value[step]
            except (KeyError, IndexError, TypeError):
                continue
            return json.dumps(value, ensure_ascii=False, sort_keys=True)
        return None

    return parse


def _json_in(text: str) -> list[Any]:
    """The JSON values that a text may mean: all of it, a fenced block, the first object in it."""
    found: list[Any] = []
    for part in [text, *_FENCE.findall(text)]:
        try:
            found.append(json.loads(part))
        except (ValueError, RecursionError):
            continue
    start = text.find("{")
    if not found and start >= 0:
        try:
            found.append(json.JSONDecoder().raw_decode(text, start)[0])
        except (ValueError, RecursionError):
            pass
    return found


def last_number_in(text: str) -> str | None:
    """The last number, thousands separators dropped and ``3.0`` as ``3``."""
    numbers = _NUMBER.findall(text)
    if not numbers:
        return None
    try:
        value = Decimal(numbers[-1].replace(",", ""))
    except InvalidOperation:
        return None
    if value == 0:
        return "0"
    return format(value.normalize(), "f") if abs(value.adjusted()) < 40 else str(value)
