"""What ``generate`` returned, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from detdiag.targets.padding import Padded


@dataclass(frozen=True, slots=True)
class Generated:
    """One row's output.

    ``step_logits`` are the model's raw logits and ``step_scores`` what the logits processors made
    of them, both (steps, vocabulary); transformers hands both out as float32, which holds 16-bit
    logits exactly. Steps after the end-of-text token are cut off.
    """

    token_ids: tuple[int, ...]
    text: str
    step_logits: Tensor
    step_scores: Tensor | None = None
    finish_reason: str = "length"


def collect(result: Any, batch: Padded, tokenizer: Any, eos: frozenset[int]) -> list[Generated]:
    """Split a ``return_dict_in_generate`` result into rows.

    Several sequences a row (``num_return_sequences``): the first. Beams: each step's logits are
    those of the beam that the kept sequence came from.
    """
    rows = len(batch.starts)
    width = batch.input_ids.shape[1]
    sequences = result.sequences
    stride = sequences.shape[0] // rows
    beams = getattr(result, "beam_indices", None)
    out = []
    for row in range(rows):
        sequence = row * stride
        ids = sequences[sequence, width:].tolist()
        steps, finish = _cut(ids, eos)
        source = [sequence] * steps if beams is None else beams[sequence, :steps].tolist()
        kept = tuple(ids[:steps])
        out.append(
            Generated(
                token_ids=kept,
                text=tokenizer.decode(list(kept), skip_special_tokens=True),
                step_logits=_gather(result.logits, source),
                step_scores=_gather(result.scores, source),
                finish_reason=finish,
            )
        )
    return out


def _cut(ids: list[int], eos: frozenset[int]) -> tuple[int, str]:
    for index, token in enumerate(ids):
        if token in eos:
            return index + 1, "stop"
    return len(ids), "length"


def _gather(steps: Any, source: list[int]) -> Tensor:
    """(steps, vocabulary) with step ``i`` taken from sequence ``source[i]``."""
    if not steps:
        return torch.empty(0, 0)
    picked = [
        step[index] for step, index in zip(steps, source, strict=False) if 0 <= index < len(step)
    ]
    return torch.stack(picked) if picked else torch.empty(0, steps[0].shape[-1])
