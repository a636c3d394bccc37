"""From events and interventions on a local model to findings of layer ``moe``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from detdiag.evidence.finding import Evidence, Finding, Locus
from detdiag.moe.discover import Router
from detdiag.moe.experiment import BlockFindings, Effect
from detdiag.moe.judge import Event, sources
from detdiag.moe.predict import Prediction
from detdiag.moe.remedies import REMEDIES
from detdiag.moe.stats import wilson

BATCH_FACTORS: Final = (
    "batch_size",
    "neighbours",
    "row",
    "padded_length",
    "padding_side",
    "concurrency",
    "in_flight_tokens",
)
"""Conditions that reach a router only through who shares the batch."""

_RANK: Final = ("capacity", "tie", "precision", "selection", "weights", "order", "scores")
_RULES: Final = {
    "capacity": "moe.capacity-drop",
    "tie": "moe.router-tie",
    "precision": "moe.router-precision",
    "selection": "moe.selection-at-equal-scores",
    "weights": "moe.weights-at-equal-scores",
    "order": "moe.expert-order",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one condition did: the blocks' events, the runs that differ from the reference, and
    the effect of the two interventions (None: not run)."""

    query: str
    condition: str
    factor: str
    blocks: Sequence[BlockFindings]
    differing: int
    runs: int
    fixed: Effect | None = None
    broken: Effect | None = None
    fixed_differing: int | None = None

    @property
    def own(self) -> list[tuple[BlockFindings, Event]]:
        """Events that the blocks make themselves, in depth order."""
        return [(b, e) for b in self.blocks for e in _own(b)]


def _own(block: BlockFindings) -> list[Event]:
    if not block.from_repeat:
        return sources(block.events)
    return [e for e in block.events if e.kind in _RULES or e.kind == "scores"]


def rule_of(block: BlockFindings, event: Event) -> str:
    """At one shape, a change of scores or choice beside a draw of random numbers is jitter."""
    if block.from_repeat and event.kind in ("scores", "selection", "weights"):
        return "moe.router-jitter" if block.random else "moe.router-race"
    return _RULES.get(event.kind, "moe.router-race")


ROUNDING_SHARE: Final = 0.9
"""With so much of the shift gone and no token flipped, only rounding of other shapes is left."""

NAMED_SHARE: Final = 0.1
"""A source that moves less of the logits than this is a contributor, not a cause."""


def source_finding(outcome: Outcome) -> Finding | None:
    """The finding for one condition; None where no block does anything by itself.

    It is a mechanism only where the outcome differs and pinning the source places gives a real
    part of it back; else the change is there, but it is not what moves the output.
    """
    own = outcome.own
    if not own:
        return None
    block, event = _leading(own)
    rule = rule_of(block, event)
    moves = _moves(outcome)
    path = _module(block.router, event)
    return Finding(
        layer="moe",
        rule=rule if moves else "moe.healthy-noise",
        outcome="failed" if moves else "passed",
        severity="high" if moves else "low",
        summary=_summary(outcome, block, event, moves),
        evidence=_evidence(outcome, own),
        remedy=REMEDIES.get(rule),
        locus=Locus(query=outcome.query, token=event.token, module=path),
        mechanism=moves,
        explains=_explains(outcome, block) if moves else (),
        proven=moves and _both_ways(outcome),
        data=_data(outcome, own),
    )


def _moves(outcome: Outcome) -> bool:
    if outcome.differing == 0 or outcome.fixed is None:
        return False
    if outcome.fixed.restores:
        return True
    back = 1.0 if outcome.broken is None else outcome.broken.share
    return outcome.fixed.share >= NAMED_SHARE and back >= NAMED_SHARE


def _both_ways(outcome: Outcome) -> bool:
    """Pinned it stops (or loses most), and in the undisturbed run the same places bring it back;
    for repeats the undisturbed run is the unpinned one."""
    if outcome.fixed_differing is not None:
        return outcome.fixed_differing == 0
    fixed = outcome.fixed is not None and outcome.fixed.restores
    return fixed and outcome.broken is not None and outcome.broken.share >= 0.5


def _leading(own: Sequence[tuple[BlockFindings, Event]]) -> tuple[BlockFindings, Event]:
    """The strongest kind, at its lowest block and first token."""
    return min(own, key=lambda be: (_RANK.index(be[1].kind), be[0].router.index, be[1].token))


def _module(router: Router, event: Event) -> str:
    return router.block_path if event.kind == "capacity" else router.path


def _explains(outcome: Outcome, block: BlockFindings) -> tuple[str, ...]:
    if block.from_repeat:
        return ("repeat", *BATCH_FACTORS, "process", "order")
    return BATCH_FACTORS


def _summary(outcome: Outcome, block: BlockFindings, event: Event, moves: bool) -> str:
    router = block.router
    where = f"{_module(router, event)}, token {event.token}"
    how = "at equal input bits and one shape" if block.from_repeat else "at equal input bits"
    text = f"{where}: {event.reason} {how}"
    if event.left != event.right:
        text += f" (experts {_ids(event.left)} and {_ids(event.right)})"
    text += f"; {outcome.differing} of {outcome.runs} runs under '{outcome.condition}' differ"
    if outcome.fixed is not None:
        text += f"; pinning these places takes away {outcome.fixed.share:.0%} of the logit shift"
        if outcome.fixed.flips:
            text += f" and {outcome.fixed.flips - outcome.fixed.flips_left} of "
            text += f"{outcome.fixed.flips} token flips"
    if not moves:
        text += "; the outcome does not hang on it"
    return text + "."


def _ids(experts: Sequence[int]) -> str:
    return "[" + ", ".join("none" if e < 0 else str(e) for e in experts) + "]"


def _evidence(outcome: Outcome, own: Sequence[tuple[BlockFindings, Event]]) -> tuple[Evidence, ...]:
    found = [
        Evidence("places that decide otherwise at equal input", len(own), unit="places"),
        Evidence(
            "runs that differ",
            outcome.differing,
            outcome.runs,
            "runs",
            wilson(outcome.differing, outcome.runs),
            (outcome.condition,),
        ),
    ]
    if outcome.fixed is not None:
        found.append(
            Evidence(
                "share of the logit shift removed by pinning the places",
                round(outcome.fixed.share, 6),
                unit="share",
            )
        )
    if outcome.fixed_differing is not None:
        found.append(
            Evidence(
                "pinned runs that differ",
                outcome.fixed_differing,
                outcome.runs,
                "runs",
                wilson(outcome.fixed_differing, outcome.runs),
            )
        )
    if outcome.broken is not None:
        found.append(
            Evidence(
                "share of the shift that the same places bring into the undisturbed run",
                round(outcome.broken.share, 6),
                unit="share",
            )
        )
    return tuple(found)


def _data(outcome: Outcome, own: Sequence[tuple[BlockFindings, Event]]) -> dict[str, object]:
    kinds = Counter(event.kind for _, event in own)
    blocks = sorted({b.router.block_path for b, _ in own})
    data: dict[str, object] = {
        "condition": outcome.condition,
        "kinds": dict(sorted(kinds.items())),
        "modules": blocks[:20],
    }
    if outcome.fixed is not None:
        data["shift_before"] = outcome.fixed.shift
        data["shift_after"] = outcome.fixed.left
        data["leaves_only_rounding"] = (
            outcome.fixed.share >= ROUNDING_SHARE and outcome.fixed.flips_left == 0
        )
    return data


def inherited_finding(
    flips: int,
    rounded: int,
    places: int,
    query: str,
    first: tuple[Router, int],
    share: float | None,
) -> Finding:
    """Routing that changed because its input had changed, or because the router's product rounds
    otherwise at another batch shape (``rounded`` of them): a contributor at most."""
    part = (
        "" if share is None else f"; pinning the experts takes away {share:.0%} of the logit shift"
    )
    own = f", {rounded} by rounding of the router's own product at that shape" if rounded else ""
    return Finding(
        layer="moe",
        rule="moe.inherited-flip",
        outcome="passed",
        severity="low",
        summary=f"{flips} of {places} places go to other experts because rounding reached the "
        f"router (first in {first[0].block_path} at token {first[1]}{own}){part}. No tie, limit or "
        "draw of the routers' own is involved.",
        evidence=(
            Evidence("inherited flips", flips, places, "places", wilson(flips, places)),
            *(
                ()
                if share is None
                else (Evidence("share of the logit shift", round(share, 6), unit="share"),)
            ),
        ),
        remedy=REMEDIES["moe.inherited-flip"],
        locus=Locus(query=query, token=first[1], module=first[0].path),
        data={"contributor": True},
    )


def stable_finding(places: int, conditions: Sequence[str]) -> Finding:
    """Nothing moved: the routers are ruled out under the conditions that ran."""
    return Finding(
        layer="moe",
        rule="moe.routing-equal",
        outcome="passed",
        summary=f"Every block decides the same at equal input, and no expert changes in {places} "
        f"places under {len(conditions)} conditions.",
        evidence=(
            Evidence(
                "places that changed", 0, places, "places", wilson(0, places), tuple(conditions)
            ),
        ),
    )


def prediction_evidence(prediction: Prediction) -> tuple[Evidence, ...]:
    """Expected and observed flips as evidence rows."""
    return (
        Evidence(
            "flips expected from margins and noise",
            round(prediction.expected_per_thousand, 4),
            prediction.places,
            "per thousand places",
        ),
        Evidence(
            "flips observed",
            round(prediction.observed_per_thousand, 4),
            prediction.places,
            "per thousand places",
            _thousand(wilson(prediction.observed, prediction.places)),
        ),
    )


def _thousand(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return None if interval is None else (1000 * interval[0], 1000 * interval[1])
