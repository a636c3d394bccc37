"""Real faults, as classes that go in front of a module's own class (see ``invariant.swapped``).

Each one does to a small model what a kernel, a server or a forgotten switch does to a large one.
None of them announces itself: the prober sees a module whose bits misbehave.
"""

from __future__ import annotations

import random
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SPLIT_TABLE: Final = ((1, 1), (2, 2), (4, 4), (16, 1), (32, 2), (64, 4))
"""(largest token count, partial sums): what a GEMM heuristic looks like. Beyond the table: 8."""

_TIMING = random.SystemRandom()
"""Stands for thread timing: an order that no seed of the process controls."""


def partial_products(linear: nn.Linear, x: Tensor, parts: int) -> list[Tensor]:
    """``linear`` over ``parts`` equal slices of its inner dimension, each rounded to x's dtype."""
    pieces = zip(x.chunk(parts, dim=-1), linear.weight.chunk(parts, dim=-1), strict=True)
    return [F.linear(part, weight) for part, weight in pieces]


def summed(partials: list[Tensor]) -> Tensor:
    """Left to right in the tensors' own dtype."""
    total = partials[0]
    for part in partials[1:]:
        total = total + part
    return total


class RandomOrderSum(nn.Linear):
    """A split reduction whose partial sums arrive in no fixed order (atomics on a GPU)."""

    def forward(self, x: Tensor) -> Tensor:
        partials = partial_products(self, x, 8)
        _TIMING.shuffle(partials)
        return summed(partials)


class SplitByTokenCount(nn.Linear):
    """A reduction split that a heuristic picks by the number of tokens in the whole call."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.numel() // x.shape[-1]
        parts = next((parts for most, parts in SPLIT_TABLE if tokens <= most), 8)
        return super().forward(x) if parts == 1 else summed(partial_products(self, x, parts))


class SharedScale(nn.Linear):
    """Dynamic int8 activations with one scale for everything in the call."""

    def forward(self, x: Tensor) -> Tensor:
        scale = (x.abs().amax().float() / 127).clamp(min=1e-8)
        levels = (x.float() / scale).round().clamp(-127, 127)
        return super().forward((levels * scale).to(x.dtype))


class CarriedScale(nn.Linear):
    """Int8 activations whose scale is a running average over all calls: calibration left on."""

    running_amax: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        amax = x.abs().amax().float().clamp(min=1e-6)
        before = self.running_amax
        scale = amax if before is None else 0.8 * before + 0.2 * amax
        self.running_amax = scale
        levels = (x.float() * 127 / scale).round().clamp(-127, 127)
        return super().forward((levels * scale / 127).to(x.dtype))


class DropoutLeftOn(nn.Module):
    """Dropout on a module's output although the model is in evaluation mode."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return F.dropout(super().forward(*args, **kwargs), p=0.05, training=True)


class PaddingSeen(nn.Module):
    """A serving loop that pads rows to one length and forgets mask and positions."""

    def forward(
        self, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None, **kw: Any
    ) -> Any:
        return super().forward(input_ids=input_ids, attention_mask=None, position_ids=None, **kw)


class TieByDraw(nn.Module):
    """Greedy decoding whose arg-max takes any of several equal maxima."""

    def _get_logits_processor(self, *args: Any, **kwargs: Any) -> Any:
        processors = super()._get_logits_processor(*args, **kwargs)
        processors.append(any_maximum)
        return processors


def any_maximum(input_ids: Tensor, scores: Tensor) -> Tensor:
    """Scores (rows, vocabulary) with all but one of the equal maxima removed, at random."""
    out = scores.clone()
    for row, best in enumerate(scores == scores.amax(-1, keepdim=True)):
        places = best.nonzero().flatten().tolist()
        _TIMING.shuffle(places)
        out[row, places[1:]] = -torch.inf
    return out


class LimitedCapacity(nn.Module):
    """A router with a fixed number of slots an expert; later tokens of a call find them taken."""

    top_k: int
    num_experts: int
    capacity_factor: float = 1.5

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, experts = super().forward(x)
        slots = int(self.capacity_factor * experts.numel() / self.num_experts) + 1
        arrival = F.one_hot(experts.flatten(), self.num_experts).cumsum(0)
        place = arrival.gather(1, experts.flatten()[:, None]).view_as(experts)
        return logits, weights * (place <= slots), experts


class UnstableTopK(nn.Module):
    """A router that selects on scores rounded to bfloat16, with no rule for equal ones."""

    top_k: int

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, _, _ = super().forward(x)
        scores = logits.float().softmax(-1).to(torch.bfloat16)
        order = list(range(scores.shape[-1]))
        _TIMING.shuffle(order)
        shuffled = torch.tensor(order, device=x.device)
        top, place = scores[:, shuffled].topk(self.top_k, dim=-1)
        weights = (top / top.sum(-1, keepdim=True)).to(logits.dtype)
        return logits, weights, shuffled[place]
