"""Trials of the batch probe: solo reruns, one condition at a time, and what ran before."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from detdiag.evidence.record import Event
from detdiag.probes import batch_wording
from detdiag.probes.conditions import (
    AFTER_OTHERS,
    BASE,
    PADDED,
    Condition,
    base_condition,
    size_conditions,
)
from detdiag.probes.history import carried, in_between
from detdiag.probes.interface import ProbeContext
from detdiag.probes.repeatability import explain, pin_draws
from detdiag.probes.runs import Reference, Run, bench, forced_observation, run_padded
from detdiag.probes.stabiliser import Stabiliser, differing
from detdiag.probes.trials import Trials, harmless_padding
from detdiag.targets.padding import Padded

BASE_SHARE = 0.15
MIN_BASE = 4
ARM_REPEATS = 2


def base_runs(context: ProbeContext, trials: Trials, times: int) -> Iterator[Event]:
    """Solo reruns; when they differ, find out why before anything is contrasted."""
    condition = base_condition(trials.ref)
    target, ref = context.target, trials.ref
    batch = target.pad(condition.rows)
    clock = bench(context).clock
    until = time.monotonic() + BASE_SHARE * max(context.remaining_s(), 0.0)
    for repeat in range(times):
        each = clock.forward_s(1, len(ref.row))
        if repeat >= MIN_BASE and time.monotonic() + each > until:
            break
        run = run_padded(target, batch, ref.start, clock=clock)[0]
        yield recorded_run(context, trials, condition, 0, repeat, run)
    runs = trials.runs[(BASE, 0)]
    bench(context).base[ref.query] = runs
    trials.stabiliser = Stabiliser(target)
    k = differing(runs)
    known: Stabiliser | None = context.scratch.get("stabiliser")
    if not k and known is None:
        return
    if known is None:
        known = explain(
            target,
            batch,
            ref.start,
            0,
            k,
            len(runs) - 1,
            tries=affordable_tries(context, ref),
            time_left=context.remaining_s,
        )
        context.scratch["stabiliser"] = known
        context.scratch["unstable"] = (k, len(runs) - 1)
        yield from batch_wording.state_findings(known.sources, ref)
    fixed = Stabiliser(target, known.sources, known.seeded, known.fresh, known.pinned)
    pin_draws(fixed, batch)
    trials.stabiliser = fixed
    trials.runs[(BASE, 0)] = [fixed.run(batch, ref.start)[0] for _ in range(3)]


def affordable_tries(context: ProbeContext, ref: Reference) -> int:
    """Reruns per question while looking for a source: about forty are asked for in all."""
    each = max(bench(context).clock.forward_s(1, len(ref.row)), 1e-6)
    return max(3, min(8, int(0.5 * context.remaining_s() / each / 5)))


def recorded_run(
    context: ProbeContext, trials: Trials, condition: Condition, row: int, repeat: int, run: Run
) -> Event:
    trials.conditions[condition.name] = condition
    trials.runs.setdefault((condition.name, row), []).append(run)
    fixed = trials.stabiliser is not None and bool(trials.stabiliser.sources)
    return forced_observation(
        bench(context).next_id("batch"),
        trials.ref,
        run,
        condition.factors(row, repeat),
        context.target.tokenizer,
        role="intervention" if fixed else "trial",
    )


def tried_condition(
    context: ProbeContext,
    trials: Trials,
    condition: Condition,
    left: list[str],
    reserve_s: float = 0.0,
) -> Iterator[Event]:
    """Run one condition ARM_REPEATS times, or note that the budget did not allow it.

    ``reserve_s`` is kept back for finding the module of a difference that was seen.
    """
    clock = bench(context).clock
    cost = clock.forward_s(1, condition.tokens, ARM_REPEATS)
    if context.remaining_s() < cost * 1.2 + reserve_s:
        left.append(condition.name)
        return
    target, ref = context.target, trials.ref
    limit = getattr(target.model.config, "max_position_embeddings", None)
    if limit is not None and condition.padded_length > limit:
        left.append(f"{condition.name} (longer than the model's {limit} positions)")
        return
    batch = target.pad(
        condition.rows,
        padding_side=condition.padding_side,
        padded_length=condition.padded_length,
    )
    pins = tuple(i for i, r in enumerate(condition.rows) if r == ref.row)
    assert trials.stabiliser is not None
    for repeat in range(ARM_REPEATS):
        try:
            runs = trials.stabiliser.run(batch, ref.start, condition.tested, pin_rows=pins)
        except torch.OutOfMemoryError:
            left.append(f"{condition.name} (out of memory)")
            return
        clock.saw(batch.input_ids.numel(), runs[0].wall_s)
        for row, run in zip(condition.tested, runs, strict=True):
            yield recorded_run(context, trials, condition, row, repeat, run)


def history(context: ProbeContext, trials: Trials, left: list[str]) -> Iterator[Event]:
    """Other requests in between, then the same one again: does it still give its bits?"""
    assert trials.stabiliser is not None
    if trials.stabiliser.sources:
        return
    target, ref = context.target, trials.ref
    others = in_between(context, ref)
    tokens = sum(o.input_ids.numel() for o in others) + len(ref.row)
    if context.remaining_s() < bench(context).clock.forward_s(1, tokens, ARM_REPEATS):
        left.append("other requests in between")
        return
    base = base_condition(ref)
    batch = target.pad(base.rows)
    after = Condition(
        "after other requests",
        base.rows,
        base.padded_length,
        order=AFTER_OTHERS,
        contrasts=(("order", BASE),),
    )
    for repeat in range(ARM_REPEATS):
        for other in others:
            target.forward_padded(other)
        run = run_padded(target, batch, ref.start, clock=bench(context).clock)[0]
        yield recorded_run(context, trials, after, 0, repeat, run)
    changed = trials.contrast(after.name, BASE)
    if changed is None or not changed.bit_equal:
        yield from _carried(context, trials, batch, others)


def _carried(
    context: ProbeContext, trials: Trials, batch: Padded, others: list[Padded]
) -> Iterator[Event]:
    """State it is if two fresh copies with one history agree; then go on with fresh copies."""
    assert trials.stabiliser is not None
    ref = trials.ref
    source = carried(trials.stabiliser, ref, batch, others, ARM_REPEATS)
    if source is None:
        return
    context.scratch["stabiliser"] = trials.stabiliser
    yield batch_wording.state_finding(source, ref, ("order",))
    trials.runs[(BASE, 0)] = [trials.stabiliser.run(batch, ref.start)[0] for _ in range(3)]


def drift(
    context: ProbeContext, trials: Trials, sizes: list[int], left: list[str]
) -> Iterator[Event]:
    """The solo run once more after the sweep, and after all prompts: if it moved, something left
    state behind it (or a race came late); with fresh copies the sweep is made again."""
    assert trials.stabiliser is not None
    if trials.stabiliser.sources or context.scratch.get("stabiliser") is not None:
        return
    target, ref = context.target, trials.ref
    batch = target.pad([ref.row])
    run = run_padded(target, batch, ref.start, clock=bench(context).clock)[0]
    yield recorded_run(context, trials, base_condition(ref), 0, len(trials.runs[(BASE, 0)]), run)
    if run.digests == trials.base.digests:
        return
    others = [*in_between(context, ref), *(target.pad([ref.row] * n) for n in sizes)]
    yield from _carried(context, trials, batch, others)
    if trials.stabiliser.sources:
        trials.runs = {k: v for k, v in trials.runs.items() if k[0] == BASE}
        yield from sweep(context, trials, sizes, left)


PROOF_FORWARDS = 18
"""Solo forwards behind padding that a proof of padding takes with its placebos."""


def padding_reserve(context: ProbeContext, trials: Trials) -> float:
    """Seconds to keep back for proving the operator, once padding is seen to do harm."""
    seen = trials.contrast(PADDED, BASE)
    if seen is None or seen.bit_equal or harmless_padding(trials):
        return 0.0
    return bench(context).clock.forward_s(PROOF_FORWARDS, trials.conditions[PADDED].tokens)


def sweep(
    context: ProbeContext, trials: Trials, sizes: list[int], left: list[str]
) -> Iterator[Event]:
    """Batches of copies: the largest first (what differs anywhere differs there), then the
    smallest, then those between, as far as time is left after a reserve for finding the place."""
    ordered = sorted(size_conditions(trials.ref, sizes), key=lambda c: len(c.rows))
    ordered = [*ordered[-1:], *ordered[:-1]]
    smallest = len(ordered[-1].rows) if ordered else 0
    reserve_s = 4 * bench(context).clock.forward_s(1 + smallest, len(trials.ref.row))
    reserve_s += padding_reserve(context, trials)
    for place, condition in enumerate(ordered):
        yield from tried_condition(context, trials, condition, left, reserve_s if place > 1 else 0)
