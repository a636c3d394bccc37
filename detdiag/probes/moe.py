"""Does a token go to another expert, or get dropped, and is that cause or symptom?"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.finding import Finding
from detdiag.evidence.observation import Observation, Output, Route
from detdiag.evidence.record import Event
from detdiag.layers import Layer
from detdiag.moe.decisions import routes
from detdiag.moe.discover import Router, find_routers
from detdiag.moe.experiment import (
    BlockFindings,
    Effect,
    Run,
    Setup,
    alone_graft,
    batch_events,
    batch_graft,
    effect,
    pinned_graft,
    repeat_events,
    run,
)
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
from detdiag.probes.interface import ProbeContext
from detdiag.probes.runs import Reference, reference
from detdiag.targets.local import LocalTarget

SOLO_RERUNS = 5
MAX_TOKENS = 96
"""Longest row that is examined; the head is kept, because routing is causal."""
EXTRA_PADDING = 7
_ROUTER_NAME = re.compile(r"router|(^|[._])experts?[._]")


@dataclass(slots=True)
class _Row:
    """Everything measured on one prompt."""

    ref: Reference
    tokens: tuple[int, ...]
    solo: Run
    outcomes: list[Outcome] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


class MoeProbe:
    """Replays every routed block on equal input, then pins what differs."""

    layer: Layer = "moe"

    def run(self, context: ProbeContext) -> Iterator[Event]:
        began = time.monotonic()
        target = context.target
        routers = _routers(context)
        if not routers:
            yield _without_routers(target, _since(began))
            return
        rows: list[_Row] = []
        skipped: list[str] = []
        for prompt in target.prompts:
            cost = (time.monotonic() - began) / max(len(rows), 1)
            if rows and context.remaining_s() < cost:
                skipped.append(f"prompt {prompt.id}")
                continue
            row = _examine(context, routers, reference(context, prompt), brief=bool(rows))
            rows.append(row)
            skipped += row.left_out
            yield from _observations(row, routers, target)
        yield from _findings(rows, routers, target)
        yield "routing", _table(rows, routers, target)
        reason = f"left out: {', '.join(skipped)}" if skipped else ""
        state: Any = "out_of_budget" if skipped else "done"
        yield ProbeStatus("moe", state, reason, _since(began))


def _without_routers(target: LocalTarget, wall_s: float) -> ProbeStatus:
    named = [n for n, _ in target.model.named_parameters() if _ROUTER_NAME.search(n)]
    if not named:
        return ProbeStatus("moe", "not_applicable", "no router found", wall_s)
    return ProbeStatus(
        "moe",
        "skipped",
        f"{named[0]} looks like a router, but no call was seen that compares one score per expert",
        wall_s,
    )


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)


def _routers(context: ProbeContext) -> tuple[Router, ...]:
    """Routers of the model, found on a copy so that state it keeps is not disturbed."""
    model = context.target.fresh_model() or context.target.model
    vocab = context.target.model.config.get_text_config().vocab_size
    found = find_routers(model, lambda m, ids: m(input_ids=ids % vocab, use_cache=False))
    context.scratch["routers"] = found
    return found


def _examine(
    context: ProbeContext, routers: Sequence[Router], ref: Reference, *, brief: bool
) -> _Row:
    """``brief`` keeps to the largest batch: what a router does wrong it does to every prompt."""
    target = context.target
    tokens = ref.row[:MAX_TOKENS]
    solo = run(target, routers, Setup("solo", (tokens,)))
    row = _Row(ref, tokens, solo)
    row.outcomes.append(_repeat_outcome(target, routers, solo, ref.prompt.id))
    shaky = {b.router.index for b in row.outcomes[0].blocks if not b.repeats}
    costs = 0.0
    for setup in _setups(context, tokens, brief=brief):
        if context.remaining_s() < costs:
            row.left_out.append(setup.name)
            continue
        began = time.monotonic()
        try:
            made, outcome = _batch_outcome(target, routers, row, setup, shaky)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            # The model's own code may not bear a shape; the other conditions still count.
            row.left_out.append(f"{setup.name} ({type(error).__name__})")
            continue
        row.outcomes.append(outcome)
        row.runs.append(made)
        costs = max(costs, time.monotonic() - began)
    return row


def _setups(context: ProbeContext, tokens: tuple[int, ...], *, brief: bool) -> Iterator[Setup]:
    """Largest batch first: most of what a batch does to a router shows there."""
    sizes = sorted({n for n in context.plan.batch_sizes if n > 1}, reverse=True)
    if not sizes:
        return
    size = sizes[0]
    copies = (tokens,) * size
    yield Setup(f"batch of {size} copies, last row", copies, size - 1, "batch_size")
    others = _neighbours(context, tokens, size - 1)
    yield Setup(f"batch of {size}, other text, last row", (*others, tokens), size - 1, "neighbours")
    yield Setup(f"batch of {size}, other text", (tokens, *others), 0, "neighbours")
    if brief:
        return
    for n in sizes:
        yield Setup(f"batch of {n} copies", (tokens,) * n, 0, "batch_size")
    yield Setup("padded", (tokens,), 0, "padded_length", len(tokens) + EXTRA_PADDING)


def _neighbours(
    context: ProbeContext, tokens: tuple[int, ...], count: int
) -> tuple[tuple[int, ...], ...]:
    """Rows of the same length from the other prompts, so that the shape stays."""
    texts = [context.target.encode(p) for p in context.target.prompts]
    texts = [t for t in texts if t != tokens[: len(t)]] or [tokens[::-1]]
    length = len(tokens)
    rows = []
    for i in range(count):
        text = texts[i % len(texts)]
        rows.append((text * (length // len(text) + 1))[:length])
    return tuple(rows)


def _repeat_outcome(
    target: LocalTarget, routers: Sequence[Router], base: Run, query: str
) -> Outcome:
    """Replays at one shape, then reruns of the whole model with and without pinned places."""
    blocks = [repeat_events(target, base, r) for r in routers if r.index in base.calls]
    if all(b.repeats for b in blocks):
        return Outcome(query, base.setup.name, base.setup.factor, blocks, 0, 0)
    reruns = [run(target, routers, base.setup, keep=False).logits for _ in range(SOLO_RERUNS)]
    differing = [x for x in reruns if not torch.equal(x, base.logits)]
    made = Outcome(query, base.setup.name, base.setup.factor, blocks, len(differing), SOLO_RERUNS)
    if not differing or not made.own:
        return made
    graft = pinned_graft(base)
    pinned = [
        run(target, routers, base.setup, graft=graft, keep=False).logits for _ in range(SOLO_RERUNS)
    ]
    effects = [effect(base.logits, x, y) for x, y in zip(reruns, pinned, strict=True)]
    total = Effect(
        sum(e.shift for e in effects),
        sum(e.left for e in effects),
        sum(e.flips for e in effects),
        sum(e.flips_left for e in effects),
    )
    still = sum(not torch.equal(x, base.logits) for x in pinned)
    return replace(made, fixed=total, fixed_differing=still)


def _batch_outcome(
    target: LocalTarget, routers: Sequence[Router], row: _Row, setup: Setup, shaky: set[int]
) -> tuple[Run, Outcome]:
    made = run(target, routers, setup)
    blocks = []
    unsteady = False
    for router in routers:
        if router.index in shaky or router.index not in made.calls:
            continue
        found = batch_events(target, row.solo, made, router)
        if not found.repeats:
            unsteady = True
            found = repeat_events(target, made, router)
        blocks.append(found)
    if unsteady:
        # A draw or race that only a batch wakes: its control is this very batch.
        return made, _repeat_outcome(target, routers, made, row.ref.prompt.id)
    differs = int(not torch.equal(made.logits, row.solo.logits))
    outcome = Outcome(row.ref.prompt.id, setup.name, setup.factor, blocks, differs, 1)
    if not outcome.own or not differs:
        return made, outcome
    refusing = {b.router.index for b, e in outcome.own if e.kind == "capacity"}
    real = made.batch.real(setup.tested)
    fixed = run(
        target, routers, setup, graft=alone_graft(setup, made.width, refusing, real), keep=False
    )
    outcome = replace(outcome, fixed=effect(row.solo.logits, made.logits, fixed.logits))
    if setup.padded_length is None:
        broken = run(target, routers, row.solo.setup, graft=batch_graft(made, refusing), keep=False)
        outcome = replace(outcome, broken=effect(made.logits, row.solo.logits, broken.logits))
    return made, outcome


def _observations(row: _Row, routers: Sequence[Router], target: LocalTarget) -> Iterator[Event]:
    """The solo run and the run with the most to tell, with their routing."""
    yield _observation(f"moe-{row.ref.prompt.id}-solo", row, row.solo, routers)
    telling = _telling(row)
    if telling is not None:
        yield _observation(f"moe-{row.ref.prompt.id}-batch", row, telling, routers)


def _telling(row: _Row) -> Run | None:
    if not row.runs:
        return None
    by_name = {o.condition: o for o in row.outcomes}
    return max(row.runs, key=lambda r: _weight(by_name[r.setup.name]))


def _weight(outcome: Outcome) -> tuple[int, int]:
    return len(outcome.own), sum(len(b.inherited) for b in outcome.blocks)


def _observation(ident: str, row: _Row, made: Run, routers: Sequence[Router]) -> Observation:
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


def _findings(
    rows: Sequence[_Row], routers: Sequence[Router], target: LocalTarget
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


def _quiet_finding(rows: Sequence[_Row], routers: Sequence[Router], target: LocalTarget) -> Finding:
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


def _first_inherited(rows: Sequence[_Row]) -> tuple[_Row, Run, BlockFindings]:
    for row in rows:
        by_name = {o.condition: o for o in row.outcomes}
        for made in row.runs:
            for block in by_name[made.setup.name].blocks:
                if block.inherited:
                    return row, made, block
    raise ValueError("no inherited flip")


def _pinned_shares(
    target: LocalTarget, routers: Sequence[Router], row: _Row, made: Run
) -> dict[str, float]:
    """Share of the logit shift that each level of pinned routing takes away."""
    shares: dict[str, float] = {}
    for level in LEVELS:
        logits = pinned_logits(target, routers, made.setup, row.solo, level)
        if logits is not None:
            shares[level] = effect(row.solo.logits, made.logits, logits).share
    return shares


def _prediction(rows: Sequence[_Row], routers: Sequence[Router]) -> Prediction | None:
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


def _table(rows: Sequence[_Row], routers: Sequence[Router], target: LocalTarget) -> dict[str, Any]:
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
