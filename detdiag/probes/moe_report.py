"""What a routing walk hands over: observations, findings and the report's table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from detdiag.evidence.finding import Finding
from detdiag.evidence.observation import Observation, Output, Route
from detdiag.moe.decisions import routes
from detdiag.moe.discover import Router
from detdiag.moe.experiment import BlockFindings, Run, effect
from detdiag.moe.live_findings import (
    Outcome,
    inherited_finding,
    prediction_evidence,
    source_finding,
    stable_finding,
)
from detdiag.moe.pin import LEVELS, pinned_logits
from detdiag.moe.predict import Prediction, predict
from detdiag.moe.table import routing_table
from detdiag.probes._compare import row_digests
from detdiag.probes.runs import Reference
from detdiag.targets.local import LocalTarget


@dataclass(slots=True)
class ExaminedRow:
    """Everything measured on one prompt."""

    ref: Reference
    tokens: tuple[int, ...]
    solo: Run
    outcomes: list[Outcome] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def row_observations(
    row: ExaminedRow, routers: Sequence[Router], target: LocalTarget
) -> Iterator[Observation]:
    """The solo run and the run with the most to tell, with their routing."""
    yield _observation(f"moe-{row.ref.prompt.id}-solo", row, row.solo, routers)
    telling = _telling(row)
    if telling is not None:
        yield _observation(f"moe-{row.ref.prompt.id}-batch", row, telling, routers)


def _telling(row: ExaminedRow) -> Run | None:
    if not row.runs:
        return None
    by_name = {o.condition: o for o in row.outcomes}
    return max(row.runs, key=lambda r: _weight(by_name[r.setup.name]))


def _weight(outcome: Outcome) -> tuple[int, int]:
    return len(outcome.own), sum(len(b.inherited) for b in outcome.blocks)


def _observation(ident: str, row: ExaminedRow, made: Run, routers: Sequence[Router]) -> Observation:
    logits = made.logits.cpu()
    return Observation(
        id=ident,
        query=row.ref.query,
        surface="hf.forward",
        prompt_token_ids=row.tokens,
        output=Output(
            token_ids=tuple(logits.argmax(-1).tolist()), logit_digests=row_digests(logits)
        ),
        routing=tuple(_routes(made, routers)),
        factors={
            "batch_size": len(made.setup.rows),
            "row": made.setup.tested,
            "condition": made.setup.name,
        },
        role="intervention",
    )


def _routes(made: Run, routers: Sequence[Router]) -> list[Route]:
    row, width = made.setup.tested, made.width
    real = made.batch.real(row)
    tokens = slice(row * width + real.start, row * width + real.stop)
    return [
        route
        for router in routers
        if router.index in made.calls
        for route in routes(made.calls[router.index], tokens)
    ]


def walk_findings(
    rows: Sequence[ExaminedRow], routers: Sequence[Router], target: LocalTarget
) -> Iterator[Finding]:
    found = [f for row in rows for o in row.outcomes if (f := source_finding(o)) is not None]
    named = _strongest_per_rule(found)
    prediction = _prediction(rows, routers)
    extra = () if prediction is None else prediction_evidence(prediction)
    for finding in named:
        yield replace(finding, evidence=finding.evidence + extra)
    if not named:
        closing = _quiet_finding(rows, routers, target)
        yield replace(closing, evidence=closing.evidence + extra)


def _strongest_per_rule(found: Sequence[Finding]) -> list[Finding]:
    """One finding a rule: proven before shown before seen, and only rules that are shown where
    any is."""
    best: dict[str, Finding] = {}
    for finding in found:
        known = best.get(finding.rule)
        if known is None or _strength(finding) > _strength(known):
            best[finding.rule] = finding
    failed = [f for f in best.values() if f.outcome == "failed"]
    return sorted(failed or best.values(), key=_strength, reverse=True)


def _strength(finding: Finding) -> tuple[bool, bool]:
    return finding.mechanism, finding.proven


def _quiet_finding(
    rows: Sequence[ExaminedRow], routers: Sequence[Router], target: LocalTarget
) -> Finding:
    places = sum(len(r.tokens) * len(routers) * len(r.runs) for r in rows)
    flips = sum(len(b.inherited) for r in rows for o in r.outcomes for b in o.blocks)
    if not flips:
        conditions = tuple(dict.fromkeys(o.condition for r in rows for o in r.outcomes))
        places = places or sum(len(r.tokens) * len(routers) for r in rows)
        return stable_finding(places, conditions)
    row, made, block = _first_inherited(rows)
    share = _pinned_shares(target, routers, row, made).get("weights")
    return inherited_finding(
        flips,
        sum(len(b.rounded) for r in rows for o in r.outcomes for b in o.blocks),
        places,
        row.ref.prompt.id,
        (block.router, block.inherited[0]),
        share,
    )


def _first_inherited(rows: Sequence[ExaminedRow]) -> tuple[ExaminedRow, Run, BlockFindings]:
    for row in rows:
        by_name = {o.condition: o for o in row.outcomes}
        for made in row.runs:
            for block in by_name[made.setup.name].blocks:
                if block.inherited:
                    return row, made, block
    raise ValueError("no inherited flip")


def _pinned_shares(
    target: LocalTarget, routers: Sequence[Router], row: ExaminedRow, made: Run
) -> dict[str, float]:
    """Share of the logit shift that each level of pinned routing takes away."""
    shares: dict[str, float] = {}
    for level in LEVELS:
        logits = pinned_logits(target, routers, made.setup, row.solo, level)
        if logits is not None:
            shares[level] = effect(row.solo.logits, made.logits, logits).share
    return shares


def _prediction(rows: Sequence[ExaminedRow], routers: Sequence[Router]) -> Prediction | None:
    """From the blocks that only pass on what they get: a fault is not noise."""
    at_fault = {b.router.index for r in rows for o in r.outcomes for b, _ in o.own}
    pairs = [
        (row.solo.view(router)[0], made.view(router)[0])
        for row in rows
        for made in row.runs
        for router in routers
        if router.index not in at_fault
        and router.index in made.calls
        and router.index in row.solo.calls
    ]
    return predict(pairs)


def walk_table(
    rows: Sequence[ExaminedRow], routers: Sequence[Router], target: LocalTarget
) -> dict[str, Any]:
    row = max(rows, key=lambda r: max((_weight(o) for o in r.outcomes), default=(0, 0)))
    other = _telling(row) or row.solo
    pieces = [target.tokenizer.decode([t]) for t in row.tokens]
    table = routing_table(
        _routes(row.solo, routers),
        _routes(other, routers),
        tokens=pieces,
        modules={r.index: r.block_path for r in routers},
    )
    prediction = _prediction(rows, routers)
    named = [f for o in row.outcomes if (f := source_finding(o)) is not None]
    if named:
        table["first_flip"] = max(named, key=_strength).summary
    table["query"] = row.ref.prompt.id
    table["conditions"] = [row.solo.setup.name, other.setup.name]
    table["pinned"] = _pinned_shares(target, routers, row, other) if row.runs else {}
    if prediction is not None:
        table["prediction"] = {
            "places": prediction.places,
            "expected_per_thousand": prediction.expected_per_thousand,
            "observed_per_thousand": prediction.observed_per_thousand,
            "noise_score": prediction.noise,
        }
    table["routers"] = [
        {
            "module": r.path,
            "block": r.block_path,
            "experts": r.experts,
            "top_k": r.top_k,
            "kind": r.kind,
        }
        for r in routers
    ]
    return table
