"""What a model remembers: buffers, parameters and plain attributes that a call changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import xxhash

_PLAIN = (int, float, str, bool, type(None), tuple, list, dict)


def _mark(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        raw = value.detach().reshape(-1).contiguous().cpu().view(torch.uint8).numpy()
        return (tuple(value.shape), xxhash.xxh3_64_hexdigest(raw.tobytes()))
    if isinstance(value, (list, tuple)):
        return tuple(_mark(v) for v in value)
    if isinstance(value, dict):
        return tuple((repr(k), _mark(v)) for k, v in value.items())
    return repr(value) if isinstance(value, _PLAIN) else id(value)


def snapshot(model: Any) -> dict[str, Any]:
    """Comparable marks of every buffer and every plain or tensor attribute, by dotted name."""
    marks: dict[str, Any] = {}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name, buffer in module._buffers.items():
            if buffer is not None:
                marks[prefix + name] = _mark(buffer)
        for name, value in vars(module).items():
            if name.startswith("_") and name in torch.nn.Module().__dict__:
                continue
            if isinstance(value, (torch.Tensor, *_PLAIN)):
                marks[prefix + name] = _mark(value)
    return marks


@contextlib.contextmanager
def changed_state(model: Any) -> Iterator[list[str]]:
    """Fill the list, on exit, with the names of the state that changed while open."""
    changed: list[str] = []
    before = snapshot(model)
    yield changed
    after = snapshot(model)
    changed += sorted(k for k in after if before.get(k) != after[k])
