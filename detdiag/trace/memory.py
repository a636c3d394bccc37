"""Who owns which memory: addresses of storages, names of the model's own tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def renames(tensors: list[Any], results: list[Tensor]) -> bool:
    """Whether the results are other names for the inputs' memory (views and the like)."""
    if not results or not tensors:
        return False
    inputs = {address_of(t) for _, _, t in tensors}
    return all(r.numel() and address_of(r) in inputs for r in results)


def address_of(t: Tensor) -> int:
    try:
        return t.untyped_storage().data_ptr() or id(t)
    except (RuntimeError, NotImplementedError):
        return id(t)


def memory_order(t: Tensor) -> Tensor:
    """A transposed parameter as it lies in memory, so that hashing it needs no copy."""
    if t.is_contiguous():
        return t
    order = sorted(range(t.dim()), key=lambda axis: -t.stride(axis))
    return t.permute(order)


def storage_names(model: nn.Module) -> dict[int, str]:
    """Addresses of parameters and buffers with their names (``parameter:lm_head.weight``)."""
    out: dict[int, str] = {}
    for name, p in model.named_parameters():
        out.setdefault(address_of(p), f"parameter:{name}")
    for name, b in model.named_buffers():
        out.setdefault(address_of(b), f"buffer:{name}")
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                out.setdefault(address_of(value), f"attribute:{path}.{name}".replace(":.", ":"))
    return out
