"""What the trace needs to know about an operator, read once from its schema."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

_METADATA = frozenset(
    "aten.detach aten.detach_ aten.alias aten.lift_fresh aten.is_nonzero aten._local_scalar_dense "
    "aten.sym_size aten.sym_numel aten.sym_stride aten.is_same_size aten.item".split()
)
_VIEWS = frozenset(
    f"aten.{name}"
    for name in "view transpose unsqueeze squeeze slice expand expand_as permute select t split "
    "split_with_sizes chunk unbind narrow as_strided unfold movedim swapaxes diagonal flatten_view "
    "view_as real imag view_as_real numpy_T mT".split()
)
"""Operators that never copy; others (``reshape``, ``to``) may, and are judged by their result."""

_SIMPLE = frozenset({int, float, bool, str, type(None), torch.dtype})
_UNINITIALISED = ("aten.empty", "aten.new_empty", "aten.empty_like", "aten.empty_strided")


@dataclass(frozen=True, slots=True)
class OpInfo:
    """``name`` is the dotted name without the overload (``aten.linear``)."""

    name: str
    metadata: bool
    view: bool
    empty: bool
    writes: frozenset[str]
    arguments: tuple[str, ...]
    seeded: bool


@cache
def op_info(func: Any) -> OpInfo:
    """Facts about an ``OpOverload`` (its schema's alias annotations and tags)."""
    name = getattr(func, "overloadpacket", func)
    dotted = str(name).replace("::", ".")
    schema = getattr(func, "_schema", None)
    arguments = tuple(a.name for a in schema.arguments) if schema is not None else ()
    writes: frozenset[str] = frozenset()
    if schema is not None:
        writes = frozenset(
            a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write
        )
    tags = getattr(func, "tags", ())
    return OpInfo(
        name=dotted,
        metadata=dotted in _METADATA,
        view=dotted in _VIEWS,
        empty=dotted in _UNINITIALISED,
        writes=writes,
        arguments=arguments,
        seeded=torch.Tag.nondeterministic_seeded in tags,
    )


def named_tensors(info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """``(slot, argument name, tensor)`` of every tensor argument, lists opened."""
    out: list[Any] = []
    for i, value in enumerate(args):
        name = info.arguments[i] if i < len(info.arguments) else str(i)
        _collect(name, value, out)
    for name, value in kwargs.items():
        _collect(name, value, out)
    return out


def _collect(name: str, value: Any, out: list[Any]) -> None:
    if isinstance(value, Tensor):
        out.append((name, name, value))
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            if isinstance(item, Tensor):
                out.append((f"{name}.{i}", name, item))


def scalars(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments that are not tensors, in order (lists as text), to compare two calls."""
    plain = tuple(
        [a if type(a) in _SIMPLE else _text(a) for a in args if not isinstance(a, Tensor)]
    )
    return plain if not kwargs else (*plain, _text(kwargs))


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return "T"
    if isinstance(value, (list, tuple)):
        return f"({','.join(_text(v) for v in value)})"
    if isinstance(value, dict):
        return f"({','.join(f'{k}={_text(v)}' for k, v in value.items())})"
    if isinstance(value, (int, float, str, type(None), torch.dtype)):
        return str(value)
    return type(value).__name__


def tensors_in(value: Any, depth: int = 3) -> list[Tensor]:
    """Tensors of a nested output, in order (tuples, lists, mappings with tensor values)."""
    if isinstance(value, Tensor):
        return [value]
    if depth == 0:
        return []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors_in(item, depth - 1)]
    return []
