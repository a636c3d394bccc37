"""Margins of the arg-max at every generated position, beside the noise that numerics makes."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from detdiag.evidence.case import Margin
from detdiag.probes._compare import Difference, difference, ulp_of
from detdiag.probes.conditions import BASE
from detdiag.probes.interface import ProbeContext
from detdiag.probes.trials import Trials


def margin_logits(logits: Tensor) -> tuple[list[float], list[float]]:
    """Top-1 minus top-2 per position, in logits and in ULPs of the dtype at top-1's magnitude."""
    top = logits.topk(2, dim=-1).values.double()
    gap = top[:, 0] - top[:, 1]
    return gap.tolist(), (gap / ulp_of(top[:, 0], logits.dtype)).tolist()


def events(context: ProbeContext, trials: Trials) -> Iterator[Margin]:
    """One :class:`Margin` per generated position (index in the continuation), forced solo run.

    The noise floor takes every condition that changes shapes only (batch of copies, row place,
    padding), unless ``trials.distorting`` says that it changes more than rounding.
    """
    gaps, ulps = margin_logits(trials.base.logits)
    noise = _noise(trials)
    flipped = {i for d in _changes(trials) for i in d.flipped}
    for position, (gap, ulp) in enumerate(zip(gaps, ulps, strict=True)):
        token = trials.ref.continuation[position]
        yield Margin(
            query=trials.ref.prompt.id,
            position=position,
            token=context.target.tokenizer.decode([token]),
            margin_logits=gap,
            margin_ulp=ulp,
            noise_logits=None if noise is None else 2 * noise[position],
            flipped=position in flipped,
        )


def _changes(trials: Trials, *, numerics_only: bool = False) -> Iterator[Difference]:
    for (name, _row), runs in trials.runs.items():
        condition = trials.conditions.get(name)
        if name == BASE or condition is None:
            continue
        if numerics_only and (
            condition.neighbours != "copies"
            or any(factor in trials.distorting for factor, _ in condition.contrasts)
        ):
            continue
        yield difference(trials.base.logits, runs[0].logits)


def _noise(trials: Trials) -> list[float] | None:
    changes = list(_changes(trials, numerics_only=True))
    if not changes:
        return None
    return [max(values) for values in zip(*(d.per_position_abs for d in changes), strict=True)]
