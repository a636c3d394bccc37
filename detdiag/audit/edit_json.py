"""Smallest text edits of JSON: order, white space and everything untouched stay as they were."""

from __future__ import annotations

import json
from typing import Any

from detdiag.audit.jsontext import Node, scan

KeyPath = tuple[str | int, ...]


def set_value(text: str, path: KeyPath, value: Any) -> str:
    """``text`` with ``path`` set to ``value``; missing objects on the way are made."""
    node = scan(text)
    depth = 0
    for step in path:
        child = node.items.get(step)
        if child is None:
            break
        node, depth = child, depth + 1
    rest = path[depth:]
    if not rest:
        return text[: node.start] + json.dumps(value) + text[node.end :]
    for step in reversed(rest[1:]):
        value = {step: value}
    if text[node.start] != "{":
        return text[: node.start] + json.dumps({str(rest[0]): value}) + text[node.end :]
    return _insert(text, node, str(rest[0]), value)


def _insert(text: str, node: Node, key: str, value: Any) -> str:
    member = f"{json.dumps(key)}: {json.dumps(value)}"
    if not node.items:
        return text[: node.start] + "{" + member + "}" + text[node.end :]
    last = max(node.items.values(), key=lambda child: child.end)
    first_key = min(node.key_starts.values())
    before = text[node.start + 1 : first_key]
    separator = before if "\n" in before else (" " if ", " in text[node.start : node.end] else "")
    if "\n" not in before and not separator and len(node.items) == 1:
        separator = " "
    return text[: last.end] + "," + separator + member + text[last.end :]


def remove(text: str, path: KeyPath) -> str:
    """``text`` without the member at ``path``; unchanged where it is absent."""
    root = scan(text)
    parent = root.walk(path[:-1])
    step = path[-1]
    if parent is None or step not in parent.items or not isinstance(step, str):
        return text
    start, end = parent.key_starts[step], parent.items[step].end
    after = _skip_space(text, end)
    if text[after] == ",":
        return text[:start] + text[_skip_space(text, after + 1) :]
    before = start
    while before > parent.start + 1 and text[before - 1] in " \t\r\n":
        before -= 1
    if text[before - 1] == ",":
        return text[: before - 1] + text[end:]
    return text[:before] + text[end:]


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at
