"""How many routing flips should rounding noise make, given the margins of one run?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from detdiag.moe.decisions import Decisions


@dataclass(frozen=True, slots=True)
class Prediction:
    """``expected`` and ``observed`` flips over ``places`` (token, block) places; ``noise`` is the
    root mean square change of the score gap at rank k, in score units."""

    places: int
    expected: float
    observed: int
    noise: float

    @property
    def expected_per_thousand(self) -> float:
        return 1000 * self.expected / self.places if self.places else 0.0

    @property
    def observed_per_thousand(self) -> float:
        return 1000 * self.observed / self.places if self.places else 0.0


def gaps(of: Decisions) -> tuple[Tensor, Tensor, Tensor] | None:
    """Per token: (gap at rank k, worst chosen expert, best rejected expert), the gap in float64;
    None where scores were not seen. Tokens with an empty slot get an infinite gap."""
    if of.scores is None or of.ids is None or of.ids.shape[-1] >= of.scores.shape[-1]:
        return None
    scores, ids = of.scores.double(), of.ids
    safe = ids.clamp(min=0)
    chosen = scores.gather(-1, safe)
    low, slot = chosen.min(-1)
    rest = scores.scatter(-1, safe, -torch.inf)
    high, rival = rest.max(-1)
    gap = torch.where((ids < 0).any(-1) | ~torch.isfinite(high), torch.inf, low - high)
    return gap, safe.gather(-1, slot.unsqueeze(-1)).squeeze(-1), rival


def predict(pairs: Sequence[tuple[Decisions, Decisions]]) -> Prediction | None:
    """Expected flips from the left runs' margins at the noise between left and right.

    Rounding noise lies on a grid and is zero at most places, so no curve is fitted: a gap flips
    by as many of the measured changes as are larger, half of which point the right way.
    """
    found = [m for left, right in pairs if (m := _measure(left, right)) is not None]
    if not found:
        return None
    gap = torch.cat([g for g, _, _ in found])
    change = torch.cat([c for _, c, _ in found])
    observed = sum(int(flipped.sum()) for _, _, flipped in found)
    noise = float(change.pow(2).mean().sqrt()) if len(change) else 0.0
    return Prediction(len(gap), expected_flips(gap, change), observed, noise)


def expected_flips(gap: Tensor, change: Tensor) -> float:
    """Sum over ``gap`` of the chance that a draw of ``change``, with either sign, is larger."""
    if not len(change):
        return 0.0
    sizes = change.abs().sort().values
    larger = len(sizes) - torch.searchsorted(sizes, gap.clamp(min=0).contiguous(), right=True)
    return float(larger.sum()) / (2 * len(sizes))


def _measure(left: Decisions, right: Decisions) -> tuple[Tensor, Tensor, Tensor] | None:
    read = gaps(left)
    if read is None or right.scores is None or right.ids is None:
        return None
    if right.scores.shape != left.scores.shape:  # type: ignore[union-attr]
        return None
    gap, low, rival = read
    scores = right.scores.double()
    after = (scores.gather(-1, low[:, None]) - scores.gather(-1, rival[:, None])).squeeze(-1)
    change = after - gap
    assert left.ids is not None
    flipped = (left.ids.sort(-1).values != right.ids.sort(-1).values).any(-1)
    return gap, change[torch.isfinite(change)], flipped
