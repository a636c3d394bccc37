"""Structural diff of two JSON values: what changed, where, and whether it can reach the model."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal

from detdiag.errors import DetdiagError
from detdiag.inputs.align import opcodes
from detdiag.inputs.bytes_diff import TextDiff, diff_texts
from detdiag.inputs.canonical import (
    _NORMAL_NAMES,
    ENVELOPES,
    PARAMETER_CONTAINERS,
    PROMPT_FIELDS,
    is_inert,
    normal_key,
)

ChangeKind = Literal["value", "text", "type", "added", "removed", "order", "spelling", "duplicate"]
Reach = Literal["prompt", "parameter", "model", "other", "inert"]
"""What a change can reach: the prompt, a sampling parameter, the model name, any other
field of the request, or nothing (inert fields, top-level key order, number spelling)."""

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
_STEP: Final = re.compile(
    r"""\.([A-Za-z_][A-Za-z0-9_-]*)|\[(\d+)\]|\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]"""
)


@dataclass(frozen=True, slots=True)
class Change:
    """One difference at one JSON path. ``text_diff`` is set where two strings differ."""

    path: str
    kind: ChangeKind
    reach: Reach
    a: Any = None
    b: Any = None
    text_diff: TextDiff | None = None

    @property
    def can_matter(self) -> bool:
        """Whether the model could answer differently because of it."""
        return self.reach != "inert"

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"path": self.path, "kind": self.kind, "reach": self.reach}
        if self.text_diff is not None:
            out["text_diff"] = self.text_diff.to_dict()
        else:
            out["a"], out["b"] = _short(self.a), _short(self.b)
        return out


def diff_json(a: Any, b: Any, *, request: bool = True) -> tuple[Change, ...]:
    """Changes from ``a`` to ``b``; empty only if they are equal in value, type and key order.

    ``request`` reads the top level as a request body (inert fields, prompt, parameters);
    without it every value change counts as ``other`` and key order as ``inert``.
    """
    try:
        return tuple(_walk(a, b, (), request))
    except RecursionError as error:
        raise DetdiagError("JSON nested too deeply to compare") from error


def json_path(keys: Sequence[str | int]) -> str:
    """``$.messages[0].content``; odd keys in brackets and quotes."""
    out = "$"
    for key in keys:
        if isinstance(key, int):
            out += f"[{key}]"
        elif _IDENTIFIER.match(key):
            out += f".{key}"
        else:
            out += f"[{key!r}]"
    return out


def path_keys(path: str) -> tuple[str | int, ...]:
    """Inverse of :func:`json_path`."""
    keys: list[str | int] = []
    for name, index, quoted in _STEP.findall(path):
        keys.append(name if name else int(index) if index else ast.literal_eval(quoted))
    return tuple(keys)


Keys = tuple[str | int, ...]


def _walk(a: Any, b: Any, keys: Keys, request: bool) -> Iterator[Change]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        yield from _objects(a, b, keys, request)
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        yield from _lists(a, b, keys, request)
    else:
        yield from _scalars(a, b, keys, request)


def _objects(
    a: Mapping[str, Any], b: Mapping[str, Any], keys: Keys, request: bool
) -> Iterator[Change]:
    twice_a, twice_b = (getattr(side, "duplicates", ()) for side in (a, b))
    if twice_a != twice_b:
        yield _change(keys, "duplicate", request, list(twice_a), list(twice_b))
    shared_a, shared_b = [k for k in a if k in b], [k for k in b if k in a]
    if shared_a != shared_b:
        reach = _order_reach(keys, request)
        yield Change(json_path(keys), "order", reach, shared_a, shared_b)
    for key in [*a, *(k for k in b if k not in a)]:
        inside = (*keys, key)
        if key not in b:
            yield _change(inside, "removed", request, a[key], None)
        elif key not in a:
            yield _change(inside, "added", request, None, b[key])
        else:
            yield from _walk(a[key], b[key], inside, request)


def _lists(a: Sequence[Any], b: Sequence[Any], keys: Keys, request: bool) -> Iterator[Change]:
    if len(a) == len(b):
        for index, (left, right) in enumerate(zip(a, b, strict=True)):
            yield from _walk(left, right, (*keys, index), request)
        return
    found = opcodes([_frozen(item) for item in a], [_frozen(item) for item in b])
    for i1, i2, j1, j2 in found or [(0, len(a), 0, len(b))]:
        both = min(i2 - i1, j2 - j1)
        for step in range(both):
            yield from _walk(a[i1 + step], b[j1 + step], (*keys, i1 + step), request)
        for index in range(i1 + both, i2):
            yield _change((*keys, index), "removed", request, a[index], None)
        for index in range(j1 + both, j2):
            yield _change((*keys, index), "added", request, None, b[index])


def _scalars(a: Any, b: Any, keys: Keys, request: bool) -> Iterator[Change]:
    if isinstance(a, str) and isinstance(b, str):
        if a != b:
            reach = _reach(keys, request)
            yield Change(json_path(keys), "text", reach, a, b, diff_texts(a, b))
        return
    kind = _scalar_kind(a, b)
    if kind == "spelling":
        # 0 against 0.0: one value as a parameter, other digits where it is rendered.
        reach = _reach(keys, request)
        inert = reach != "prompt"
        yield Change(json_path(keys), kind, "inert" if inert else reach, a, b)
    elif kind is not None:
        yield _change(keys, kind, request, a, b)


def _scalar_kind(a: Any, b: Any) -> ChangeKind | None:
    if _is_number(a) and _is_number(b):
        if _spelling(a) == _spelling(b):
            return None
        return (
            "spelling"
            if a == b or (not isinstance(a, int) and _as_float(a) == _as_float(b))
            else "value"
        )
    if type(a) is type(b):
        return None if a == b else "value"
    return "type"


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _spelling(value: Any) -> str:
    text = getattr(value, "text", None)
    if isinstance(text, str):
        return text
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return repr(value) if not isinstance(value, Decimal) else str(value)


def _frozen(value: Any) -> str:
    """Equal exactly when two JSON values are equal in value, type and order."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k!r}:{_frozen(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_frozen, value)) + "]"
    return _spelling(value) if _is_number(value) else repr(value)


def _change(keys: Keys, kind: ChangeKind, request: bool, a: Any, b: Any) -> Change:
    return Change(json_path(keys), kind, _reach(keys, request), a, b)


def _reach(keys: Keys, request: bool) -> Reach:
    """Where in a request body ``keys`` lies; envelopes such as ``extra_body`` are looked into."""
    if not request:
        return "other"
    while keys and isinstance(keys[0], str):
        name = normal_key(keys[0])
        if is_inert(keys[0]):
            return "inert"
        if name in PROMPT_FIELDS:
            return "prompt"
        if name in ("model", "modelid", "deployment"):
            return "model"
        if name in _NORMAL_NAMES:
            return "parameter"
        if name not in ENVELOPES and name not in PARAMETER_CONTAINERS:
            break
        keys = keys[1:]
    return "other"


def _order_reach(keys: Keys, request: bool) -> Reach:
    """Key order can reach the model only where the object is rendered or drives a grammar."""
    if not request or not keys:
        return "inert"
    reach = _reach(keys, request)
    if reach == "prompt":
        # A message's own keys are looked up by name; what is inside them may be dumped.
        return (
            "inert" if len(keys) == 2 and normal_key(str(keys[0])) in _MESSAGE_LISTS else "prompt"
        )
    name = normal_key(str(keys[0]))
    return "other" if name in ("responseformat", "format", "guidedjson", "text") else "inert"


_MESSAGE_LISTS: Final = frozenset(("messages", "input", "contents"))


def _short(value: Any) -> Any:
    """A JSON-ready copy, long values clipped."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, str):
        return value if len(value) <= 400 else value[:400] + "\u2026"
    if isinstance(value, (Mapping, list, tuple)):
        text = _frozen(value)
        return text if len(text) <= 400 else text[:400] + "\u2026"
    return value
