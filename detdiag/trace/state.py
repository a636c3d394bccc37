"""State that a model carries from one forward to the next: buffers and plain attributes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from detdiag.trace.bits import bit_equal, hash_tensor

_SKIP = frozenset({"training", "config", "generation_config"})
_PLAIN = (int, float, bool, str, type(None))
Name = tuple[str, str]


@dataclass(frozen=True)
class Snapshot:
    """Copies of buffers and of small plain attributes by (module path, name)."""

    values: dict[Name, Any]
    weights: dict[Name, int] = field(default_factory=dict)
    """Digests of parameters: too large to copy before one is seen to change."""


def _live(model: nn.Module) -> Iterator[tuple[Name, Any, nn.Module]]:
    for path, module in getattr(model, "_orig_mod", model).named_modules():
        for name, value in module._buffers.items():
            yield (path, name), value, module
        for name, value in vars(module).items():
            if not name.startswith("_") and name not in _SKIP and _small(value):
                yield (path, name), value, module


def _small(value: Any) -> bool:
    if isinstance(value, (Tensor, *_PLAIN)):
        return not isinstance(value, nn.Parameter)
    if isinstance(value, (list, tuple)):
        return len(value) <= 64 and all(_small(v) for v in value)
    if isinstance(value, dict):
        return len(value) <= 64 and all(_small(v) for v in value.values())
    return False


def snapshot(model: nn.Module) -> Snapshot:
    """Copy the state of ``model`` as it is now."""
    values = {name: _copy(value) for name, value, _ in _live(model)}
    return Snapshot(values, {name: hash_tensor(p) for name, p in _weights(model)})


def _weights(model: nn.Module) -> Iterator[tuple[Name, Tensor]]:
    for path, module in getattr(model, "_orig_mod", model).named_modules():
        for name, p in module._parameters.items():
            if p is not None:
                yield (path, name), p


def adopt(model: nn.Module, to: Snapshot, names: tuple[Name, ...]) -> None:
    """Take the present values of those ``names`` that are weights into the snapshot, so that
    they can be put back before later runs."""
    for name, p in _weights(model):
        if name in names:
            to.values[name] = p.detach().clone()


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def changed(model: nn.Module, before: Snapshot) -> tuple[Name, ...]:
    """Names whose value is no longer what it was (new names and weights included)."""
    weights = tuple(
        name for name, p in _weights(model) if before.weights.get(name) != hash_tensor(p)
    )
    return weights + tuple(
        name
        for name, value, _ in _live(model)
        if name not in before.values or not _same(before.values[name], value)
    )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and bit_equal(a, b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    return type(a) is type(b) and (a == b or a != a and b != b)


def restore(model: nn.Module, to: Snapshot, names: tuple[Name, ...] | None = None) -> None:
    """Put the state back (all of it, or only ``names``)."""
    modules = dict(getattr(model, "_orig_mod", model).named_modules())
    for (path, name), value in to.values.items():
        if names is not None and (path, name) not in names:
            continue
        module = modules[path]
        now = getattr(module, name, None)
        if isinstance(now, Tensor) and isinstance(value, Tensor) and now.shape == value.shape:
            with torch.no_grad():
                now.copy_(value)
        else:
            setattr(module, name, _copy(value))
