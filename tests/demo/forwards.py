"""Plain transformers calls, kept apart from the package's own targets and probes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def logits_of(model: Any, rows: list[list[int]], pad: int = 0, side: str = "left") -> list[Tensor]:
    """One forward; every row is padded to the longest plus ``pad``; logits of real tokens."""
    width = max(map(len, rows)) + pad
    ids = torch.full((len(rows), width), 2)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        start = width - len(row) if side == "left" else 0
        ids[i, start : start + len(row)] = torch.tensor(row)
        mask[i, start : start + len(row)] = 1
    extra: dict[str, Any] = {}
    if not mask.all():
        extra = {"attention_mask": mask, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)}
    logits = model(ids, **extra).logits
    return [logits[i, mask[i].bool()] for i in range(len(rows))]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal dtype, shape and bits (signed zeros and NaN payloads count)."""
    return a.dtype == b.dtype and a.shape == b.shape and _bits(a) == _bits(b)


def _bits(x: Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()


def gap(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference."""
    return float((a.double() - b.double()).abs().max())


@torch.no_grad()
def module_outputs(model: Any, row: list[int]) -> dict[str, bytes]:
    """Bits of every module's first tensor output in one solo forward, in completion order."""
    seen: dict[str, bytes] = {}

    def keep(path: str) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            if isinstance(value, Tensor):
                seen.setdefault(path, _bits(value))

        return hook

    handles = [m.register_forward_hook(keep(p)) for p, m in model.named_modules() if p]
    try:
        model(torch.tensor([row]))
    finally:
        for handle in handles:
            handle.remove()
    return seen


def first_difference(model: Any, row: list[int], tries: int = 12) -> str | None:
    """The first module whose output changed between solo reruns; None if none ever did."""
    base = module_outputs(model, row)
    order = list(base)
    firsts = []
    for _ in range(tries):
        again = module_outputs(model, row)
        changed = [p for p in order if base[p] != again[p]]
        firsts += changed[:1]
    return min(firsts, key=order.index) if firsts else None
