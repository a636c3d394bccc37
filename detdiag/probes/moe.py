"""Does a token go to another expert, or get dropped, and is that cause or symptom?"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.record import Event
from detdiag.layers import Layer
from detdiag.moe.discover import Router, find_routers
from detdiag.moe.experiment import (
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
from detdiag.moe.implementations import compare_implementations
from detdiag.moe.live_findings import Outcome
from detdiag.probes.interface import ProbeContext
from detdiag.probes.moe_report import ExaminedRow, row_observations, walk_findings, walk_table
from detdiag.probes.runs import Reference, reference
from detdiag.targets.local import LocalTarget

SOLO_RERUNS = 5
MAX_TOKENS = 96
"""Longest row that is examined; the head is kept, because routing is causal."""
EXTRA_PADDING = 7
_ROUTER_NAME = re.compile(r"router|(^|[._])experts?[._]")


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
        rows: list[ExaminedRow] = []
        skipped: list[str] = []
        for prompt in target.prompts:
            cost = (time.monotonic() - began) / max(len(rows), 1)
            if rows and context.remaining_s() < cost:
                skipped.append(f"prompt {prompt.id}")
                continue
            row = _examine(context, routers, reference(context, prompt), brief=bool(rows))
            rows.append(row)
            skipped += row.left_out
            yield from row_observations(row, routers, target)
        yield from walk_findings(rows, routers, target)
        yield "routing", walk_table(rows, routers, target) | _toggled(context, rows[0])
        reason = f"left out: {', '.join(skipped)}" if skipped else ""
        state: Any = "out_of_budget" if skipped else "done"
        yield ProbeStatus("moe", state, reason, _since(began))


def _toggled(context: ProbeContext, row: ExaminedRow) -> dict[str, Any]:
    """Effect of the library's experts implementations, where the plan has a batch and time."""
    size = max(context.plan.batch_sizes, default=1)
    if size < 2 or context.remaining_s() < 0:
        return {}
    found = compare_implementations(context.target, row.tokens, size)
    return {"experts_implementation": found} if found else {}


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
) -> ExaminedRow:
    """``brief`` keeps to the largest batch: what a router does wrong it does to every prompt."""
    target = context.target
    tokens = ref.row[:MAX_TOKENS]
    solo = run(target, routers, Setup("solo", (tokens,)))
    row = ExaminedRow(ref, tokens, solo)
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
    target: LocalTarget, routers: Sequence[Router], row: ExaminedRow, setup: Setup, shaky: set[int]
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
