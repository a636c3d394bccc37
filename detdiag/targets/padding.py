"""Rows of token ids to padded tensors, with the mask and positions that ``generate`` derives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

PaddingSide = Literal["left", "right"]


@dataclass(frozen=True, slots=True)
class Padded:
    """``input_ids``, ``attention_mask`` and ``position_ids``: int64, (rows, padded length).

    ``starts`` and ``lengths`` locate each row's real tokens. ``is_padded`` is False when every
    row fills its line, and then the mask is all ones and carries no information.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    position_ids: torch.Tensor
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    is_padded: bool

    def real(self, row: int) -> slice:
        """Where the real tokens of ``row`` sit on the sequence axis."""
        return slice(self.starts[row], self.starts[row] + self.lengths[row])


def pad_rows(
    rows: Sequence[Sequence[int]],
    *,
    pad_id: int,
    side: PaddingSide = "left",
    padded_length: int | None = None,
    device: str | torch.device = "cpu",
) -> Padded:
    """Pad ``rows`` to ``padded_length`` tokens (default: the longest row) on ``side``.

    Positions follow transformers' ``_prepare_position_ids_for_generation``: the cumulated mask
    minus one, 0 at padding. Raises ValueError on an empty row or a length that does not fit.
    """
    lengths = tuple(len(row) for row in rows)
    if not rows or min(lengths) == 0:
        raise ValueError("rows must hold at least one token each")
    width = max(lengths) if padded_length is None else padded_length
    if width < max(lengths):
        raise ValueError(f"padded_length {width} is shorter than a row of {max(lengths)} tokens")
    starts = tuple(width - n if side == "left" else 0 for n in lengths)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
        ids[index, start : start + len(row)] = torch.tensor(list(row), dtype=torch.long)
        mask[index, start : start + len(row)] = 1
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
    return Padded(
        ids.to(device),
        mask.to(device),
        positions.to(device),
        starts,
        lengths,
        is_padded=any(n != width for n in lengths),
    )
