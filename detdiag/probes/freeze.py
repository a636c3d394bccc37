"""Pin the output of chosen modules to what they returned in an earlier run of the same row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from detdiag.probes.modules import ModuleLog, slices
from detdiag.targets.padding import Padded

Pinned = Mapping[str, Mapping[int, list[dict[str, Tensor]]]]
"""Per module path and occurrence: the aligned slices of each output tensor."""


def pins(log: ModuleLog, paths: Sequence[str]) -> Pinned:
    """The outputs of ``paths`` in ``log``."""
    found: dict[str, dict[int, list[dict[str, Tensor]]]] = {}
    for (path, occurrence), cell in log.cells.items():
        if path in paths:
            found.setdefault(path, {})[occurrence] = cell.outputs
    return found


@contextlib.contextmanager
def frozen(model: Any, pinned: Pinned, batch: Padded, rows: Sequence[int]) -> Iterator[None]:
    """While open, the real tokens of ``rows`` leave the pinned modules with the pinned values."""
    count: dict[str, int] = {}
    handles = []
    for path, module in model.named_modules():
        if path not in pinned:
            continue

        def after(mod: Any, args: Any, output: Any, path: str = path) -> Any:
            occurrence = count.get(path, 0)
            count[path] = occurrence + 1
            values = pinned[path].get(occurrence)
            return output if values is None else _replaced(output, list(values), batch, rows)

        handles.append(module.register_forward_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _replaced(
    output: Any, values: list[dict[str, Tensor]], batch: Padded, rows: Sequence[int]
) -> Any:
    if isinstance(output, Tensor):
        return _pinned_tensor(output, values.pop(0) if values else {}, batch, rows)
    if isinstance(output, tuple):
        return tuple(_replaced(item, values, batch, rows) for item in output)
    if isinstance(output, list):
        return [_replaced(item, values, batch, rows) for item in output]
    return output


def _pinned_tensor(
    tensor: Tensor, saved: Mapping[str, Tensor], batch: Padded, rows: Sequence[int]
) -> Tensor:
    copy = tensor.clone()
    for row in rows:
        for kind, view in slices(copy, batch, row).items():
            value = saved.get(kind)
            if value is not None and value.shape == view.shape:
                with torch.no_grad():
                    view.copy_(value)
    return copy
