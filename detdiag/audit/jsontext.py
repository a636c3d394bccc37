"""JSON text with positions: strict reading, lines of key paths and spans for small edits.

``parse`` uses the standard parser; ``scan`` walks the same text once more, only when a finding
needs a line or a fix needs a span.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from detdiag.errors import DetdiagError


def parse(text: str, path: str | Path | None = None) -> Any:
    """The value of ``text``; raises :class:`DetdiagError` with the line of the fault."""
    try:
        return json.loads(text.removeprefix("\ufeff"), parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise DetdiagError(f"not valid JSON: {error.msg}", path=path, line=error.lineno) from None
    except RecursionError:
        raise DetdiagError("not valid JSON: nested too deeply", path=path) from None
    except ValueError as error:
        raise DetdiagError(f"not valid JSON: {error}", path=path) from None


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


@dataclass(slots=True)
class Node:
    """A value with its span ``[start, end)``; ``items`` maps keys (or indexes) to children and
    ``key_starts`` gives where each key's own text begins."""

    start: int
    end: int
    items: dict[str | int, Node] = field(default_factory=dict)
    key_starts: dict[str, int] = field(default_factory=dict)

    def walk(self, path: tuple[str | int, ...]) -> Node | None:
        """The node at ``path``, or None."""
        node: Node | None = self
        for step in path:
            node = None if node is None else node.items.get(step)
        return node


_SPACE = " \t\r\n\ufeff"


def scan(text: str) -> Node:
    """Position tree of ``text``, which must be valid JSON (duplicate keys: the last counts)."""
    return _scan(text, _skip(text, 0))


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _scan(text: str, at: int) -> Node:
    char = text[at]
    if char == "{":
        return _scan_object(text, at)
    if char == "[":
        return _scan_array(text, at)
    if char == '"':
        return Node(at, scanstring(text, at + 1, True)[1])
    end = at
    while end < len(text) and text[end] not in _SPACE + ",]}":
        end += 1
    return Node(at, end)


def _scan_object(text: str, start: int) -> Node:
    node = Node(start, start)
    at = _skip(text, start + 1)
    while text[at] != "}":
        key, after = scanstring(text, at + 1, True)
        node.key_starts[key] = at
        at = _skip(text, _skip(text, after) + 1)
        node.items[key] = _scan(text, at)
        at = _next(text, node.items[key].end)
    node.end = at + 1
    return node


def _scan_array(text: str, start: int) -> Node:
    node = Node(start, start)
    at = _skip(text, start + 1)
    index = 0
    while text[at] != "]":
        node.items[index] = _scan(text, at)
        at = _next(text, node.items[index].end)
        index += 1
    node.end = at + 1
    return node


def _next(text: str, at: int) -> int:
    at = _skip(text, at)
    return _skip(text, at + 1) if text[at] == "," else at


def line_of(text: str, path: tuple[str | int, ...]) -> int:
    """1-based line of the key (or element) at ``path``, or of its nearest ancestor."""
    node = scan(text)
    at = node.start
    for step in path:
        child = node.items.get(step)
        if child is None:
            break
        at = node.key_starts.get(step, child.start) if isinstance(step, str) else child.start
        node = child
    return text.count("\n", 0, at) + 1


def paths(
    value: Any, prefix: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every (path, value) pair of nested plain data, parents first."""
    stack: list[tuple[tuple[str | int, ...], Any]] = [(prefix, value)]
    while stack:
        here, item = stack.pop()
        yield here, item
        if isinstance(item, dict):
            stack.extend(((*here, key), child) for key, child in item.items())
        elif isinstance(item, list):
            stack.extend(((*here, i), child) for i, child in enumerate(item))
