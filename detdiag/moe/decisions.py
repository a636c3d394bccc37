"""One block call as decisions per token, and as evidence routes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from detdiag.evidence.observation import Route
from detdiag.moe.capture import BlockCall


@dataclass(slots=True)
class Decisions:
    """Per token of one call: ``ids`` (tokens, k), -1 for an empty slot; ``scores`` (tokens,
    experts) as compared; ``logits`` (tokens, experts); ``weights`` (tokens, k). Missing channels
    are None."""

    ids: Tensor | None
    scores: Tensor | None
    logits: Tensor | None
    weights: Tensor | None

    def rows(self, index: slice | Tensor) -> Decisions:
        """The same for some tokens."""
        return Decisions(*(None if t is None else t[index] for t in self._fields()))

    def _fields(self) -> tuple[Tensor | None, ...]:
        return (self.ids, self.scores, self.logits, self.weights)


def decisions(call: BlockCall) -> Decisions:
    """Read one call; what the experts were told beats what the choosing call returned."""
    router = call.router
    scores, chosen, values = _from_selection(call)
    ids = call.ids if call.ids is not None else chosen
    weights = call.weights if call.ids is not None else values
    if ids is not None:
        ids = torch.where((ids < 0) | (ids >= router.experts), -1, ids)
    logits = call.logits
    if logits is not None:
        logits = logits.reshape(-1, router.experts)
    tokens = None if ids is None else ids.shape[0]
    if logits is not None and tokens is not None and logits.shape[0] != tokens:
        logits = None
    if scores is not None and tokens is not None and scores.shape[0] != tokens:
        scores = None
    return Decisions(ids, scores, logits, weights)


def _from_selection(call: BlockCall) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    selection, router = call.selection, call.router
    if selection is None:
        return None, None, None
    if router.kind == "expert_choice":
        return _expert_choice(selection.scores, selection.ids, router.experts)
    scores = selection.scores.movedim(selection.dim, -1)
    ids = selection.ids.movedim(selection.dim, -1)
    if scores.shape[-1] != router.experts:
        return None, None, None
    scores, ids = scores.reshape(-1, router.experts), ids.reshape(-1, ids.shape[-1])
    if ids.shape[-1] > router.top_k:
        ids = _best_of_sorted(scores, ids, router.top_k)
    values = None
    if selection.values is not None and selection.values.numel() == ids.numel():
        values = selection.values.detach().reshape(ids.shape)
    return scores, ids, values


def _best_of_sorted(scores: Tensor, ids: Tensor, k: int) -> Tensor:
    """First or last k of a full sort. Ascending order of raw scores keeps the best at the end;
    routers that sort negated scores keep them in front."""
    ordered = scores.gather(-1, ids)
    ascending = bool((ordered[:, 0] <= ordered[:, -1]).all())
    negated = bool((scores <= 0).all())
    return ids[:, :k] if not ascending or negated else ids[:, -k:].flip(-1)


def _expert_choice(
    scores: Tensor, chosen: Tensor, experts: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Experts that chose each token, lowest index first, -1 where fewer than the most did."""
    flat, picks = scores.reshape(experts, -1), chosen.reshape(experts, -1)
    taken = torch.zeros_like(flat, dtype=torch.bool).scatter(1, picks, True).T
    width = max(int(taken.sum(-1).max()), 1)
    order = torch.where(taken, torch.arange(experts, device=taken.device), experts)
    ids = order.sort(-1).values[:, :width]
    return flat.T, torch.where(ids == experts, -1, ids), None


def routes(call: BlockCall, tokens: slice, dropped: Sequence[bool] | None = None) -> list[Route]:
    """Evidence routes of the tokens of one row; ``block`` is the router's ordinal."""
    taken = decisions(call).rows(tokens)
    if taken.ids is None:
        return []
    scores = taken.scores if taken.scores is not None else taken.logits
    ids = taken.ids.tolist()
    # 16- and 32-bit floats convert exactly to Python's double.
    values = None if scores is None else scores.double().tolist()
    weights = None if taken.weights is None else taken.weights.double().tolist()
    dtype = None if scores is None else str(scores.dtype).removeprefix("torch.")
    return [
        Route(
            block=call.router.index,
            position=position,
            experts=tuple(e for e in chosen if e >= 0),
            weights=None if weights is None else tuple(weights[position]),
            scores=None if values is None else tuple(values[position]),
            score_dtype=dtype,
            dropped=bool(dropped[position]) if dropped is not None else -1 in chosen,
        )
        for position, chosen in enumerate(ids)
    ]
