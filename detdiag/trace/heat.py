"""Heatmap of module by token: log10 of the relative change of module outputs."""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from detdiag.trace.effects import relative_change
from detdiag.trace.modules import Frame

_BLOCK = re.compile(r"^(.*\.)?\d+(\.[^.]+)?$")


class Heat:
    """Keeps the solo run's module outputs (bounded), then compares the batched run's to them.

    Blocks and their direct children are kept, and top-level modules without a vocabulary axis.
    """

    def __init__(self, limit_bytes: int = 24 << 20) -> None:
        self.limit_bytes = limit_bytes
        self.kept: dict[Frame, Tensor] = {}
        self.size = 0
        self.rows: dict[Frame, list[float | None]] = {}

    def keep(self, frame: Frame, out: Tensor) -> None:
        """Sink of the solo trace."""
        size = out.numel() * out.element_size()
        if not _shown(frame) or out.dim() < 2 or not out.is_floating_point():
            return
        if self.size + size > self.limit_bytes or frame.path.endswith("head"):
            return
        self.size += size
        self.kept[frame] = out.detach().clone()

    def compare(self, frame: Frame, out: Tensor) -> None:
        """Sink of the batched trace."""
        mine = self.kept.get(frame)
        if mine is not None and mine.numel() == out.numel():
            self.rows[frame] = relative_change(mine, out.reshape(mine.shape))

    def table(
        self, first: dict[str, Any] | None, tokens: list[str] | None
    ) -> dict[str, Any] | None:
        """``modules`` x ``tokens`` of the first model step, in running order."""
        rows = {f.path: r for f, r in self.rows.items() if f.call == 0}
        if not rows:
            return None
        width = max(len(r) for r in rows.values())
        names = tokens if tokens and len(tokens) == width else [str(i) for i in range(width)]
        kept = {p: r for p, r in rows.items() if len(r) == width}
        modules = list(kept)
        return {
            "modules": modules,
            "tokens": names,
            "log10_rel": [kept[m] for m in modules],
            "first": first,
        }


def _shown(frame: Frame) -> bool:
    return bool(_BLOCK.match(frame.path)) or 0 < frame.path.count(".") < 2
