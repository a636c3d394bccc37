"""What an intervention did, measured on logits: bits, ULPs, margins and tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from detdiag.trace.bits import bit_equal, ulp_distance, ulp_size


@dataclass(frozen=True, slots=True)
class Distance:
    """How far two logit tensors (tokens, vocab) are apart."""

    bit_equal: bool
    max_abs_logit: float
    max_ulp: int
    differing: int
    tokens_flipped: int
    first_token: int | None

    def to_dict(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in self.__slots__}


SAME = Distance(True, 0.0, 0, 0, 0, None)


def distance(a: Tensor, b: Tensor) -> Distance:
    """Distance of two logit tensors of equal shape; positions are rows."""
    if bit_equal(a, b):
        return SAME
    ulp = ulp_distance(a, b)
    delta = (a.float() - b.float()).abs().nan_to_num(nan=float("inf"))
    changed = (ulp > 0).reshape(ulp.shape[0], -1).any(-1).nonzero().flatten()
    flips = (a.argmax(-1) != b.argmax(-1)).sum()
    return Distance(
        bit_equal=False,
        max_abs_logit=float(delta.max()),
        max_ulp=int(ulp.max()),
        differing=int((ulp > 0).sum()),
        tokens_flipped=int(flips),
        first_token=int(changed[0]) if len(changed) else None,
    )


@dataclass(frozen=True, slots=True)
class Position:
    """One position of the margin bridge; ``noise_logits`` is 2 x the largest logit change there."""

    position: int
    token: int
    margin_logits: float
    margin_ulp: float
    noise_logits: float
    flipped: bool

    @property
    def at_risk(self) -> bool:
        return self.margin_logits <= self.noise_logits


@dataclass(frozen=True, slots=True)
class MarginBridge:
    """From the noise of an operator to the tokens it can flip."""

    positions: tuple[Position, ...] = ()
    operator_ulp: int | None = None
    operator_count: int | None = None

    @property
    def at_risk(self) -> int:
        return sum(p.at_risk for p in self.positions)

    @property
    def flipped(self) -> int:
        return sum(p.flipped for p in self.positions)

    @property
    def above_floor(self) -> int:
        """Flips whose margin is above the noise floor: not numerics."""
        return sum(p.flipped and not p.at_risk for p in self.positions)

    def merged(self, other: MarginBridge) -> MarginBridge:
        """Positions of both (several rows or prompts of one run)."""
        return MarginBridge(
            self.positions + other.positions, self.operator_ulp, self.operator_count
        )

    def sentence(self) -> str:
        """One line: "of 412 positions 9 are at risk, 3 flipped, all 3 below the noise floor"."""
        head = f"of {len(self.positions)} positions {self.at_risk} are at risk, "
        if not self.flipped:
            return head + "none flipped"
        if not self.above_floor:
            which = "it is" if self.flipped == 1 else f"all {self.flipped}"
            return head + f"{self.flipped} flipped, {which} below the noise floor"
        return head + f"{self.flipped} flipped, {self.above_floor} above the noise floor"

    def to_dict(self) -> dict[str, Any]:
        return {
            "positions": len(self.positions),
            "at_risk": self.at_risk,
            "flipped": self.flipped,
            "flipped_above_noise_floor": self.above_floor,
            "operator_max_ulp": self.operator_ulp,
            "operator_differing": self.operator_count,
            "sentence": self.sentence(),
        }


def margin_bridge(
    a: Tensor, b: Tensor, *, operator_ulp: int | None = None, operator_count: int | None = None
) -> MarginBridge:
    """Margins of ``a`` (tokens, vocab) against the change to ``b``, position by position."""
    top = a.float().topk(2, dim=-1)
    values, tokens = top.values.tolist(), top.indices[:, 0].tolist()
    noise = (2 * (a.float() - b.float()).abs().amax(-1)).tolist()
    flips = (a.argmax(-1) != b.argmax(-1)).tolist()
    positions = tuple(
        Position(i, tokens[i], v[0] - v[1], (v[0] - v[1]) / ulp_size(v[0], a.dtype), noise[i], f)
        for i, (v, f) in enumerate(zip(values, flips, strict=True))
    )
    return MarginBridge(positions, operator_ulp, operator_count)


def relative_change(a: Tensor, b: Tensor) -> list[float | None]:
    """log10 of |b - a| over |a| (norms over features) for each token; None where bits agree."""
    x, y = a.reshape(a.shape[-2], -1), b.reshape(b.shape[-2], -1)
    same = (ulp_distance(x, y) == 0).all(-1) & (torch.signbit(x) == torch.signbit(y)).all(-1)
    x, y = x.float(), y.float()
    norm = x.norm(dim=-1).clamp(min=1e-30)
    rel = ((y - x).norm(dim=-1) / norm).clamp(min=1e-12).log10().tolist()
    return [None if s else round(r, 3) for s, r in zip(same.tolist(), rel, strict=True)]
