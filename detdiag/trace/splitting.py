"""Split operands into rows of real tokens, and join the results of the rows again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from detdiag.trace.align import Pick, pick_of
from detdiag.trace.calls import Layout


@dataclass(frozen=True, slots=True)
class Split:
    """How one argument is split: ``kind`` shared, batch, fold, group, or one (the same for all
    rows but for its token axes); token axes to cut."""

    kind: str
    axes: tuple[tuple[int, bool], ...] = ()
    """(axis after the batch axis is restored, whether it counts keys rather than queries)."""


def token_axes(
    op: str, name: str, shape: tuple[int, ...], layout: Layout
) -> tuple[tuple[int, bool], ...]:
    """Token axes of an operand of shape (n, ...), most usual places only."""
    out: list[tuple[int, bool]] = []
    first = 2 if len(shape) == 4 else 1
    if len(shape) > first and (kind := _token_kind(shape[first], layout)) is not None:
        out.append((first, kind or name in ("key", "value")))
    last = len(shape) - 1
    square = (
        op in ("aten.softmax", "aten._softmax", "aten.matmul")
        and len(shape) == 4
        and shape[2] == layout.length
    )
    wide = "mask" in name or name == "other" or (square and name in ("self", "tensor1"))
    if len(shape) == 4 and wide and _token_kind(shape[last], layout) is not None:
        out.append((last, True))
    return tuple(out)


def _token_kind(size: int, layout: Layout) -> bool | None:
    if size == layout.length and size > 1:
        return False
    if size == layout.static and not any(layout.padded(r) for r in range(layout.n)):
        return None  # the run alone has the same unused columns
    return True if size in (layout.kv, layout.static) and size > 1 else None


def _pick(layout: Layout, row: int, keys: bool, size: int) -> Pick:
    return pick_of(layout.kv_real[row] if keys else layout.real[row], size)


def cut_row(t: Tensor, split: Split, layout: Layout, row: int) -> Tensor:
    if split.kind == "shared":
        return t
    if split.kind == "group":
        size = t.shape[0] // layout.n
        return t[row * size : (row + 1) * size]
    if split.kind == "fold":
        t = t.reshape(layout.n, layout.length, *t.shape[1:])
    part = t if split.kind == "one" else t[row : row + 1]
    for axis, keys in split.axes:
        part = _take(part, axis, _pick(layout, row, keys, int(t.shape[axis])))
    part = laid_out_as(part, t)
    return part.flatten(0, 1) if split.kind == "fold" else part


def laid_out_as(part: Tensor, whole: Tensor) -> Tensor:
    """``part``, a cut of ``whole``, with the strides that it would have as a tensor of its own.

    Which kernel runs may depend on strides (``at::matmul`` folds the leading axes only where they
    are dense), those of axes of size 1 included, and a cut keeps those of the batch. The order of
    the axes and the room that a view leaves beside each axis are those of ``whole``.
    """
    sizes, strides = part.shape, whole.stride()
    if 0 in sizes or 0 in strides:
        return part
    order = sorted(range(part.dim()), key=lambda axis: -strides[axis])
    wanted = list(part.stride())
    for outer, inner in zip(reversed(order[:-1]), reversed(order[1:]), strict=True):
        room, rest = divmod(strides[outer], strides[inner])
        if rest or room < whole.shape[inner]:
            return part
        wanted[outer] = wanted[inner] * (room - whole.shape[inner] + sizes[inner])
    if tuple(wanted) == part.stride():
        return part
    if all(size == 1 or a == b for size, a, b in zip(sizes, wanted, part.stride(), strict=True)):
        return part.as_strided(sizes, wanted, part.storage_offset())
    return torch.empty_strided(sizes, wanted, dtype=part.dtype, device=part.device).copy_(part)


def _take(t: Tensor, axis: int, pick: Pick) -> Tensor:
    if isinstance(pick, slice):
        return t.narrow(axis, pick.start, pick.stop - pick.start)
    if pick is not None:
        return t.index_select(axis, torch.tensor(pick, device=t.device))
    return t


def output_split(name: str, lead: str, splits: dict[str, Split]) -> Split:
    """Token axes of the result: those of the leading operand, columns from the other factor."""
    split = splits[lead]
    if name != "aten.matmul" or "other" not in splits:
        return split
    axes = tuple(a for a in split.axes if a[0] != 3)
    return Split(split.kind, axes + tuple(a for a in splits["other"].axes if a[0] == 3))


def join_rows(
    parts: list[Any], split: Split, layout: Layout, lead: Tensor, whole: Any = None
) -> Any:
    """One result from those of the rows; padding as in ``whole`` (zeros without it)."""
    if isinstance(parts[0], (tuple, list)):
        wholes = whole if isinstance(whole, (tuple, list)) else [None] * len(parts[0])
        columns = [
            join_rows(list(c), split, layout, lead, w)
            for c, w in zip(zip(*parts, strict=True), wholes, strict=True)
        ]
        return None if any(c is None for c in columns) else type(parts[0])(columns)
    if not isinstance(parts[0], Tensor) or parts[0].dim() == 0:
        return None
    if split.kind == "group" or not layout.any_padded:
        joined = torch.cat(parts, dim=0)
        return joined if joined.shape[0] == lead.shape[0] else None
    return _scatter(parts, split, layout, lead, whole)


def _scatter(
    parts: list[Tensor], split: Split, layout: Layout, lead: Tensor, base: Tensor | None
) -> Tensor | None:
    """Rows of real tokens back into the padded tensor ``base`` (zeros where there is none)."""
    if split.kind == "fold":
        parts = [p.unflatten(0, (1, -1)) for p in parts]
    axes = [a for a, _ in split.axes if a < parts[0].dim()]
    keys = dict(split.axes)
    shape = list(parts[0].shape)
    shape[0] = layout.n
    for axis in axes:
        shape[axis] = _full(layout, keys[axis], split, lead, axis)
    if base is not None and base.numel() != math.prod(shape):
        return None
    whole = parts[0].new_zeros(shape) if base is None else base.clone().reshape(shape)
    for row, part in enumerate(parts):
        if part.shape[0] != 1:
            return None
        target = whole[row : row + 1]
        picks = [(a, _pick(layout, row, keys[a], shape[a])) for a in axes]
        _put(target, part, picks)
    return whole.flatten(0, 1) if split.kind == "fold" else whole


def _full(layout: Layout, keys: bool, split: Split, lead: Tensor, axis: int) -> int:
    if split.kind == "fold":
        return layout.length
    size = int(lead.shape[axis])
    if _token_kind(size, layout) is not None:
        return size
    return (layout.static or layout.kv) if keys else layout.length


def _put(target: Tensor, part: Tensor, picks: list[tuple[int, Pick]]) -> None:
    index: list[Any] = [slice(None)] * target.dim()
    for axis, pick in picks:
        if isinstance(pick, slice):
            index[axis] = pick
        elif pick is not None:
            index[axis] = torch.tensor(pick, device=target.device)
    target[tuple(index)] = part


def module_rows(forward: Callable[..., Any], layout: Layout, args: Any, kwargs: Any) -> Any:
    """Call a module's ``forward`` once for each row with that row's real tokens and join the
    results; None where the arguments or results cannot be split."""
    values = {**dict(enumerate(args)), **kwargs}
    splits = {k: module_split(v, layout) for k, v in values.items() if isinstance(v, Tensor)}
    lead = next((k for k, s in splits.items() if s.kind != "shared"), None)
    if lead is None:
        return None
    parts = []
    for row in range(layout.n):
        cut = {
            k: cut_row(v, splits[k], layout, row) if k in splits else v for k, v in values.items()
        }
        positional = [cut[i] for i in range(len(args))]
        parts.append(forward(*positional, **{k: v for k, v in cut.items() if isinstance(k, str)}))
    return join_rows(parts, splits[lead], layout, values[lead])


def module_split(t: Tensor, layout: Layout) -> Split:
    if t.dim() > 1 and t.shape[0] == layout.n:
        token = t.dim() > 2 and t.shape[1] == layout.length
        return Split("batch", ((1, False),) if token else ())
    if t.dim() and t.shape[0] == layout.n * layout.length:
        return Split("fold", ((1, False),))
    return Split("shared")
