"""Runs of one prompt by condition, and which single factor changes their bits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from detdiag.probes._compare import Difference, difference
from detdiag.probes.conditions import BASE, Condition
from detdiag.probes.runs import Reference, Run
from detdiag.probes.stabiliser import Stabiliser, differing

FACTOR_ORDER: Final = ("batch_size", "row", "neighbours", "padded_length", "padding_side")


@dataclass(slots=True)
class Trials:
    """Runs of one prompt by condition name and tested row."""

    ref: Reference
    runs: dict[tuple[str, int], list[Run]] = field(default_factory=dict)
    conditions: dict[str, Condition] = field(default_factory=dict)
    stabiliser: Stabiliser | None = None
    distorting: set[str] = field(default_factory=set)
    """Factors whose effect is beyond rounding: no part of the noise floor."""
    rules: dict[str, str] = field(default_factory=dict)
    """The rule found for each factor that changes bits."""

    @property
    def base(self) -> Run:
        return self.runs[(BASE, 0)][0]

    def first(self, name: str, row: int = 0) -> Run | None:
        found = self.runs.get((name, row))
        return found[0] if found else None

    def repeats(self, name: str, row: int = 0) -> bool:
        return differing(self.runs[(name, row)]) == 0

    def contrast(self, name: str, against: str, row: int | None = None) -> Difference | None:
        """The change from ``against`` to ``name``; None unless both ran and both repeat.

        ``row`` defaults to the first tested row, and is always that on the ``against`` side.
        """
        if name not in self.conditions or against not in self.conditions:
            return None
        mine = self.conditions[name].tested[0] if row is None else row
        theirs = self.conditions[against].tested[0]
        a, b = self.first(against, theirs), self.first(name, mine)
        if a is None or b is None:
            return None
        if not (self.repeats(against, theirs) and self.repeats(name, mine)):
            return None
        return difference(a.logits, b.logits)


def changed_cases(trials: Trials, factor: str) -> list[tuple[Condition, str, int]]:
    """(condition, condition it is compared with, row) where ``factor`` alone changes bits.

    Fewest tokens first. For ``row`` both are the same condition: the last row against the first.
    """
    out = []
    for condition in trials.conditions.values():
        if factor == "row" and len(condition.tested) > 1:
            last = condition.tested[-1]
            changed = trials.contrast(condition.name, condition.name, last)
            if changed is not None and not changed.bit_equal:
                out.append((condition, condition.name, last))
        for name, against in condition.contrasts:
            if name != factor:
                continue
            changed = trials.contrast(condition.name, against)
            if changed is not None and not changed.bit_equal:
                out.append((condition, against, condition.tested[0]))
    return sorted(out, key=lambda case: case[0].tokens)


PADDING: Final = ("padded_length", "padding_side")


def harmless_padding(trials: Trials) -> bool:
    """Does padding only move logits by rounding, too little to flip any token here?

    Positions that shift with padding, a change beyond rounding, a token whose margin the change
    could use up, or neighbours that matter in a padded batch are not harmless. Neither is padding
    that was not measured. Where runs do not even repeat, rounding by padding is no news.
    """
    noisy = trials.stabiliser is not None and bool(trials.stabiliser.sources)
    if "batch.padding-positions" in trials.rules.values() or trials.distorting & set(PADDING):
        return False
    for condition in trials.conditions.values():
        if condition.padded_length == len(trials.ref.row):
            continue
        for factor, against in condition.contrasts:
            changed = trials.contrast(condition.name, against)
            if changed is None or (factor == "neighbours" and not changed.bit_equal):
                return False
            if noisy or factor not in PADDING:
                continue
            if changed.flips or _at_risk(trials, condition, against):
                return False
    return True


def _at_risk(trials: Trials, condition: Condition, against: str) -> int:
    """Positions whose top-1 to top-2 margin is at most twice the largest change there; exact
    ties are left out, as they are open whatever the padding does."""
    other = trials.conditions[against].tested[0]
    a, b = trials.first(against, other), trials.first(condition.name, condition.tested[0])
    assert a is not None
    assert b is not None
    change = (a.logits.float() - b.logits.float()).abs().amax(dim=-1)
    top = a.logits.float().topk(2, dim=-1).values
    margin = top[..., 0] - top[..., 1]
    return int(((margin > 0) & (margin <= 2 * change)).sum())


def tried(trials: Trials, factor: str) -> int:
    """Contrasts of ``factor`` that were measured."""
    rows = sum(len(c.tested) > 1 for c in trials.conditions.values()) if factor == "row" else 0
    return rows + sum(
        name == factor and trials.contrast(c.name, against) is not None
        for c in trials.conditions.values()
        for name, against in c.contrasts
    )


def sweep_rows(trials: Trials) -> list[dict[str, Any]]:
    """The sweep table: every condition of the prompt against its solo run."""
    out = []
    for name, condition in trials.conditions.items():
        for row in condition.tested:
            run = trials.first(name, row)
            if name == BASE or run is None:
                continue
            d = difference(trials.base.logits, run.logits)
            out.append(
                {
                    "query": trials.ref.prompt.id,
                    "condition": name,
                    "batch_size": len(condition.rows),
                    "row": row,
                    "padding_side": condition.padding_side,
                    "padded_length": condition.padded_length,
                    "neighbours": condition.neighbours,
                    "max_abs_logit": d.max_abs,
                    "max_ulp": d.max_ulp,
                    "bit_equal": d.bit_equal,
                    "flips": d.flips,
                    "first_flip": d.flipped[0] if d.flipped else None,
                    "n": d.positions,
                }
            )
    return out
