"""Pinned routing: force the experts of one run upon another, at three levels.

``ids`` leaves the weights to the router, ``weights`` pins them too, ``order`` also the slots in
which the experts are taken. What each level gives back is the share of routing in a shift.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

import torch
from torch import Tensor

from detdiag.moe.capture import capture
from detdiag.moe.discover import Router
from detdiag.moe.experiment import Run, Setup
from detdiag.moe.selection import Override, Selection
from detdiag.targets.local import LocalTarget

Level = Literal["ids", "weights", "order"]
LEVELS: Final[tuple[Level, ...]] = ("ids", "weights", "order")


def pinned_logits(
    target: LocalTarget, routers: Sequence[Router], setup: Setup, base: Run, level: Level
) -> Tensor | None:
    """Logits (tokens, vocabulary) of the tested row of ``setup`` with ``base``'s experts.

    None where no router chooses by a call that can be answered for (expert choice, tables).
    """
    usable = [r for r in routers if r.kind == "token_choice" and _answerable(base, r)]
    if not usable:
        return None
    batch = target.pad(setup.rows, padded_length=setup.padded_length)
    width = int(batch.input_ids.shape[1])
    real = batch.real(setup.tested)
    first = setup.tested * width + real.start
    tokens = slice(first, first + (real.stop - real.start))

    def override(router: Router) -> Override | None:
        return _override(base, router, tokens, level)

    with capture(target.model, usable, override=override):
        return target.forward_padded(batch)[setup.tested].detach()


def _answerable(base: Run, router: Router) -> bool:
    selection = base.calls[router.index].selection
    return selection is not None and selection.ids.shape[selection.dim] == router.top_k


def _override(
    base: Run, router: Router, tokens: slice, level: Level
) -> Callable[[Selection], tuple[Tensor | None, Tensor] | None]:
    pinned, weights = _chosen(base, router)

    def answer(selection: Selection) -> tuple[Tensor | None, Tensor] | None:
        scores = selection.scores.movedim(selection.dim, -1)
        ids = selection.ids.movedim(selection.dim, -1)
        if scores.shape[-1] != router.experts or ids.shape[-1] != router.top_k:
            return None
        shape = ids.shape
        flat_scores = scores.reshape(-1, router.experts)
        flat_ids = ids.reshape(-1, router.top_k).clone()
        wanted = pinned if level == "order" else _in_place(pinned, flat_ids[tokens])
        flat_ids[tokens] = wanted
        values = flat_scores.gather(-1, flat_ids)
        if level != "ids" and weights is not None:
            given = weights if level == "order" else _follow(weights, pinned, wanted)
            values[tokens] = given.to(values.dtype)
        dim = selection.dim
        return values.reshape(shape).movedim(-1, dim), flat_ids.reshape(shape).movedim(-1, dim)

    return answer


def _chosen(base: Run, router: Router) -> tuple[Tensor, Tensor | None]:
    """(tokens, k) ids that the call returned in ``base`` and the values it compared."""
    selection = base.calls[router.index].selection
    assert selection is not None
    ids = selection.ids.movedim(selection.dim, -1).reshape(-1, router.top_k)
    scores = selection.scores.movedim(selection.dim, -1).reshape(-1, router.experts)
    real = base.batch.real(base.setup.tested)
    start = base.setup.tested * base.width
    rows = slice(start + real.start, start + real.stop)
    return ids[rows], scores.gather(-1, ids)[rows]


def _in_place(pinned: Tensor, current: Tensor) -> Tensor:
    """``pinned`` experts in the slots of ``current`` where both hold them, the rest filled in."""
    out = torch.full_like(pinned, -1)
    stay = (current.unsqueeze(-1) == pinned.unsqueeze(-2)).any(-1)
    out[stay] = current[stay]
    missing = ~(pinned.unsqueeze(-1) == out.unsqueeze(-2)).any(-1)
    out[~stay] = pinned[missing]
    return out


def _follow(weights: Tensor, pinned: Tensor, wanted: Tensor) -> Tensor:
    """``weights`` of ``pinned`` in the order of ``wanted``."""
    place = (wanted.unsqueeze(-1) == pinned.unsqueeze(-2)).to(torch.int64).argmax(-1)
    return weights.gather(-1, place)
