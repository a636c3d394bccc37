"""Find the row under test in a batched tensor.

The solo run's shape of the same operand is the key: a size that went from 1 to n is the batch,
from s to L the tokens, from s*m to n*L*m a folded batch. What fits no reading is unalignable.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from detdiag.trace.calls import Columns, Layout

Shape = tuple[int, ...]
Pick = slice | Columns | None


@dataclass(frozen=True)
class Cut:
    """How to cut the row out: ``fold`` = (axis, rows, columns) to split first, then ``picks``."""

    picks: tuple[Pick, ...]
    fold: tuple[int, int, int] | None = None
    batched: bool = False
    """Whether a batch axis was found (False: the whole tensor is taken)."""

    @cached_property
    def copies(self) -> bool:
        """Whether the cut may be new memory (an index, or a fold of a strided tensor)."""
        return self.fold is not None or any(isinstance(p, tuple) for p in self.picks)

    def apply(self, t: Tensor) -> Tensor:
        if self.fold is not None:
            axis, rows, columns = self.fold
            shape = list(t.shape)
            shape[axis : axis + 1] = [rows, columns, shape[axis] // (rows * columns)]
            t = t.reshape(shape)
        for axis, pick in enumerate(self.picks):
            if isinstance(pick, slice):
                t = t.narrow(axis, pick.start, pick.stop - pick.start)
            elif pick is not None:
                t = t.index_select(axis, torch.tensor(pick, device=t.device))
        return t


WHOLE = Cut(())


def pick_of(columns: Columns, size: int) -> Pick:
    """``columns`` of an axis as cheaply as possible: nothing, a slice, or an index."""
    if len(columns) == size:
        return None
    if columns and columns[-1] - columns[0] + 1 == len(columns):
        return slice(columns[0], columns[-1] + 1)
    return columns


def cut_like(shape: Shape, solo: Shape, batch: Layout, alone: Layout, row: int) -> Cut | None:
    """The cut that turns ``shape`` (batched) into ``solo``'s reading, or None."""
    if len(shape) != len(solo):
        return None
    picks: list[Pick] = []
    found = False
    fold: tuple[int, int, int] | None = None
    for axis, (size, single) in enumerate(zip(shape, solo, strict=True)):
        if size == single:
            pick = _static_pick(shape, axis, batch, row)
            if pick is None and size == batch.length == alone.length and axis in token_axes(shape):
                pick = pick_of(batch.real[row], size)
        elif single == 1 and size == batch.n and not found:
            found, pick = True, slice(row, row + 1)
        elif size == batch.length and single == alone.length:
            pick = pick_of(batch.real[row], size)
        elif axis >= 2 and size == batch.static and single == alone.static:
            pick = pick_of(batch.kv_real[row], size)
        elif size == batch.kv and single == alone.kv:
            pick = pick_of(batch.kv_real[row], size)
        elif not found and fold is None and _folds(size, single, batch, alone):
            found, fold = True, (axis, batch.n, batch.length)
            picks += [slice(row, row + 1), pick_of(batch.real[row], batch.length)]
            pick = None
        elif not found and fold is None and single * batch.n == size:
            found, fold = True, (axis, batch.n, 1)
            picks += [slice(row, row + 1), None]
            pick = None
        else:
            return None
        picks.append(pick)
    return Cut(tuple(picks), fold, found)


def _folds(size: int, single: int, batch: Layout, alone: Layout) -> bool:
    whole, part = batch.n * batch.length, alone.n * alone.length
    return size % whole == 0 and single % part == 0 and size // whole == single // part


def _static_pick(shape: Shape, axis: int, layout: Layout, row: int) -> Pick:
    """Logical columns of a preallocated cache or of a mask over it."""
    if layout.static is None or len(shape) != 4 or shape[axis] != layout.static or axis < 2:
        return None
    return pick_of(layout.kv_real[row], shape[axis])


def cut_solo(shape: Shape, layout: Layout, row: int = 0) -> Cut:
    """The cut for the solo run itself: padding and unused cache columns are left out."""
    picks: list[Pick] = [None] * len(shape)
    if layout.static is not None:
        picks = [_static_pick(shape, axis, layout, row) for axis in range(len(shape))]
    if layout.n == 1 and layout.padded(row):
        for axis in token_axes(shape):
            if picks[axis] is None and shape[axis] == layout.length:
                picks[axis] = pick_of(layout.real[row], layout.length)
    return Cut(tuple(picks)) if any(p is not None for p in picks) else WHOLE


def token_axes(shape: Shape) -> tuple[int, ...]:
    """Where tokens usually sit in a tensor whose first axis is the batch."""
    return {1: (0,), 2: (1,), 3: (1,), 4: (2, 3)}.get(len(shape), ())


def cut_guess(shape: Shape, batch: Layout, row: int) -> Cut | None:
    """A reading without a solo counterpart: the batch first, then the tokens."""
    if not shape:
        return WHOLE
    if shape[0] == batch.n and len(shape) > 1:
        picks: list[Pick] = [None] * len(shape)
        picks[0] = slice(row, row + 1)
        for axis in token_axes(shape):
            if axis and shape[axis] == batch.length:
                picks[axis] = pick_of(batch.real[row], batch.length)
        return Cut(tuple(picks), None, batch.n > 1)
    if shape[0] == batch.n * batch.length and batch.n > 1:
        rest: list[Pick] = [None] * len(shape)
        picks = [slice(row, row + 1), pick_of(batch.real[row], batch.length), *rest]
        return Cut(tuple(picks), (0, batch.n, batch.length), True)
    return None


def best_cut(
    shape: Shape, candidates: Iterable[Shape], batch: Layout, alone: Layout, row: int
) -> Cut | None:
    """First candidate solo shape (best guess first) that ``shape`` can be cut to."""
    for solo in candidates:
        cut = cut_like(shape, solo, batch, alone, row)
        if cut is not None:
            return cut
    return None
