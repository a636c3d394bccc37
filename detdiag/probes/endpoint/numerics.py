"""Tables from replies that are there already: arithmetic, margins, effective temperature."""

from __future__ import annotations

from collections.abc import Sequence

from detdiag.evidence.case import Margin
from detdiag.evidence.observation import Observation
from detdiag.probes.endpoint.context import EndpointContext
from detdiag.verdict.endpoint.numerics import (
    fingerprint,
    lattice_step,
    margin_nat,
    near_tie_nat,
    values_of,
)
from detdiag.verdict.endpoint.sampling import effective

MOST_MARGINS = 200


async def numerics(context: EndpointContext) -> str | None:
    """Emit ``numerics``, ``sampling`` and one margin a position of the first full reply."""
    trials = [o for o in context.observations if o.role == "trial"]
    found = fingerprint(trials)
    context.emit(("numerics", found.to_dict()))
    context.emit(("effective_temperature", effective(trials)[1].to_dict()))
    for margin in _margins(trials):
        context.emit(margin)
    return None if found.positions else "the server returns no log-probabilities"


def _margins(trials: Sequence[Observation]) -> list[Margin]:
    """Top-1 minus top-2 in nats (equal to logits apart) on the first reply of each question."""
    seen: set[str] = set()
    out: list[Margin] = []
    for one in trials:
        if not one.output.positions or one.query in seen:
            continue
        seen.add(str(one.query))
        for index, position in enumerate(one.output.positions):
            gap = margin_nat(position)
            if gap is None:
                continue
            step = lattice_step(values_of(position))
            out.append(
                Margin(
                    str(one.query), index, position.token, gap,
                    None if step is None else gap / step, near_tie_nat(position),
                )
            )  # fmt: skip
    return out[:MOST_MARGINS]
