"""Faults planted into a tiny model's modules by replacing their forward."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def after(model: Any, path: str, change: Callable[[Any, Tensor], Tensor]) -> None:
    """Let ``change(module, output)`` rewrite the first output tensor of the module at ``path``."""
    module = model.get_submodule(path)
    plain = type(module).forward

    class Planted(type(module)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out = plain(self, *args, **kwargs)
            if isinstance(out, tuple):
                return (change(self, out[0]), *out[1:])
            return change(self, out)

    Planted.__name__ = type(module).__name__
    module.__class__ = Planted


def next_up(x: Tensor) -> Tensor:
    return torch.nextafter(x, torch.full_like(x, float("inf")))


def race(model: Any, path: str, rate: float = 0.6) -> None:
    """One ULP on some elements, from a source that no seed reaches."""
    source = random.SystemRandom()

    def change(_: Any, out: Tensor) -> Tensor:
        if source.random() > rate:
            return out
        where = torch.zeros(out.shape[-1], dtype=torch.bool)
        where[source.randrange(out.shape[-1])] = True
        return torch.where(where, next_up(out), out)

    after(model, path, change)


def random_order_sum(model: Any, path: str) -> None:
    """A reduction whose order torch's own generator shuffles."""

    def change(_: Any, out: Tensor) -> Tensor:
        order = torch.randperm(out.shape[-1])
        total = torch.zeros(out.shape[:-1], dtype=out.dtype)
        for i in order.tolist():
            total = total + out[..., i]
        return out + total.unsqueeze(-1) * 1e-3

    after(model, path, change)


def token_count_norm(model: Any, path: str, threshold: int = 40) -> None:
    """A norm that sums in another order once a launch holds more than ``threshold`` tokens."""
    module = model.get_submodule(path)
    plain = type(module)

    class Norm(plain):  # type: ignore[misc, valid-type]
        def forward(self, x: Tensor) -> Tensor:
            parts = list(x.float().pow(2).unbind(-1))
            if x.shape[:-1].numel() > threshold:
                parts.reverse()
            squares = parts[0]
            for part in parts[1:]:
                squares = squares + part
            squares = squares.unsqueeze(-1) / x.shape[-1]
            scaled = x.float() * torch.rsqrt(squares + self.variance_epsilon)
            return self.weight * scaled.to(x.dtype)

    Norm.__name__ = plain.__name__
    module.__class__ = Norm


def shared_int8_scale(model: Any, path: str) -> None:
    """A linear layer that quantises its input with one scale for the whole batch."""
    module = model.get_submodule(path)
    plain = type(module)

    class Int8(plain):  # type: ignore[misc, valid-type]
        def forward(self, x: Tensor) -> Tensor:
            scale = x.abs().max().float() / 127
            quantised = (x.float() / scale).round().clamp(-127, 127) * scale
            return torch.nn.functional.linear(quantised.to(x.dtype), self.weight, self.bias)

    Int8.__name__ = plain.__name__
    module.__class__ = Int8


def carried_state(model: Any, path: str) -> None:
    """A running mean of everything seen so far leaks into the output."""
    module = model.get_submodule(path)
    module.register_buffer("seen", torch.zeros(()), persistent=False)

    def change(self: Any, out: Tensor) -> Tensor:
        leaked = out + 1e-3 * self.seen.to(out.dtype)
        self.seen = 0.5 * self.seen + 0.5 * out.float().mean()
        return leaked

    after(model, path, change)


def last_request(model: Any, path: str) -> None:
    """State that only another request changes: the length of the one before."""
    module = model.get_submodule(path)
    module.memory = {}

    def change(self: Any, out: Tensor) -> Tensor:
        length = out.shape[1]
        last = self.memory.get("length", length)
        self.memory["length"] = length
        return out if last == length else out * 1.001

    after(model, path, change)


def ignores_position_ids(model: Any) -> None:
    """Positions counted from the first slot, padding or not."""
    inner = model.model if hasattr(model, "model") else model.transformer
    plain = type(inner).forward

    class Inner(type(inner)):  # type: ignore[misc]
        def forward(self, *args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
            ids = kwargs.get("input_ids", args[0] if args else None)
            own = torch.arange(ids.shape[1]).unsqueeze(0)
            return plain(self, *args, position_ids=own, **kwargs)

    Inner.__name__ = type(inner).__name__
    inner.__class__ = Inner


def dropout_left_on(model: Any, path: str, p: float = 0.1) -> None:
    """A dropout module in training mode behind the module at ``path``."""
    module = model.get_submodule(path)
    module.extra = torch.nn.Dropout(p).train()
    after(model, path, lambda self, out: self.extra(out))
