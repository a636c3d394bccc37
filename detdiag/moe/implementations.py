"""The library's ways to compute experts (loop, batched, grouped products), as a toggle."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from detdiag.targets.loading import quiet_transformers
from detdiag.targets.local import LocalTarget

IMPLEMENTATIONS: Final = ("eager", "batched_mm", "grouped_mm")


@contextmanager
def experts_implementation(model: Any, value: str) -> Iterator[None]:
    """Switch ``model`` to ``value`` and back; raises ValueError where its class cannot."""
    before = getattr(model.config, "_experts_implementation", None)
    with quiet_transformers():
        model.set_experts_implementation(value)
        try:
            yield
        finally:
            model.set_experts_implementation(before or "eager")


def compare_implementations(
    target: LocalTarget, tokens: Sequence[int], size: int
) -> list[dict[str, Any]]:
    """Per implementation: is the row alone bit-equal to the row among ``size`` copies, by how
    much the logits differ, and what the batch costs. Empty where the model has no such switch."""
    rows = []
    for value in IMPLEMENTATIONS:
        try:
            with experts_implementation(target.model, value):
                alone = target.forward([tokens])[0]
                began = time.perf_counter()
                among = target.forward([tokens] * size)[0]
                seconds = time.perf_counter() - began
        except (ValueError, AttributeError, RuntimeError, NotImplementedError):
            continue
        rows.append(
            {
                "toggle": "experts_implementation",
                "value": value,
                "bit_equal": bool(torch.equal(alone, among)),
                "max_abs_logit": float((alone.double() - among.double()).abs().max()),
                "flips": int((alone.argmax(-1) != among.argmax(-1)).sum()),
                "n": len(tokens),
                "seconds": round(seconds, 4),
            }
        )
    return rows
