"""Does a row's result depend on who shares the batch, on padding, or on what ran before?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.finding import Evidence, Finding, Remedy
from detdiag.evidence.observation import Observation
from detdiag.evidence.record import Event
from detdiag.layers import Layer
from detdiag.probes import batch_findings, free_runs, margins
from detdiag.probes._compare import Difference, difference
from detdiag.probes.conditions import (
    AFTER_OTHERS,
    BASE,
    Condition,
    base_condition,
    detail_conditions,
    mirrored_conditions,
    size_conditions,
)
from detdiag.probes.history import carried, in_between, other_rows
from detdiag.probes.interface import ProbeContext
from detdiag.probes.repeatability import Stabiliser, differing, explain, pin_draws
from detdiag.probes.runs import Reference, Run, bench, forced_observation, reference, run_padded
from detdiag.probes.steps import first_birth
from detdiag.targets.padding import Padded

BASE_REPEATS = 11
"""Undisturbed solo runs before anything else: ten A/A comparisons, where the budget allows."""
BASE_SHARE = 0.2
MIN_BASE = 4
ARM_REPEATS = 2
SHAPE_FACTORS = ("batch_size", "row")
CONTENT_FACTORS = ("neighbours", "padded_length", "padding_side")


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


class BatchProbe:
    """Contrasts one batch factor at a time against the solo run; see :mod:`conditions`."""

    layer: Layer = "batch"

    def run(self, context: ProbeContext) -> Iterator[Event]:
        began = time.monotonic()
        left: list[str] = []
        sizes = [n for n in sorted(set(context.plan.batch_sizes)) if n > 1]
        done: list[Trials] = []
        for index, prompt in enumerate(context.target.prompts):
            if index and context.remaining_s() < _prompt_cost(context, done, sizes):
                left.append(f"prompt {prompt.id}")
                continue
            trials = Trials(reference(context, prompt))
            if trials.ref.cut:
                left.append(f"tokens after the first {len(trials.ref.continuation)}")
            yield from _base(context, trials, BASE_REPEATS if not index else 3)
            if not index:
                yield from _history(context, trials, left)
            yield from _sweep(context, trials, sizes, left)
            if not index:
                yield from _drift(context, trials, sizes, left)
            if sizes and not index:
                yield from batch_findings.findings(context, trials, left, SHAPE_FACTORS)
                held: list[Observation] = []
                yield from _details(context, trials, sizes[0], left, held)
                yield from batch_findings.findings(context, trials, left, CONTENT_FACTORS)
                yield from _released(trials, held)
                yield from _mirrored(context, trials, sizes[0], left)
            yield from _free(context, trials, sizes, left)
            done.append(trials)
        if len(done) > 1:
            yield from _drift(context, done[0], [], left)
        if context.scratch.get("outputs"):
            yield ("outputs", context.scratch["outputs"][:12])
        yield ("sweep", [row for t in done for row in batch_findings.sweep_rows(t)])
        for t in done:
            yield from margins.events(context, t)
        yield from _nothing_moved(done, sizes)
        yield _status(left, sizes, time.monotonic() - began)


def _prompt_cost(context: ProbeContext, done: list[Trials], sizes: list[int]) -> float:
    """Expected seconds for one more prompt: three solo runs and the whole sweep."""
    clock = bench(context).clock
    tokens = len(done[0].ref.row) if done else 48
    rows = 3 + ARM_REPEATS * sum(sizes)
    steps = (1 + len(sizes)) * ARM_REPEATS * context.plan.max_new_tokens
    return clock.forward_s(rows, tokens) + clock.s_per_step * steps


def _base(context: ProbeContext, trials: Trials, times: int) -> Iterator[Event]:
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
        yield _record(context, trials, condition, 0, repeat, run)
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
        yield from batch_findings.state_findings(known.sources, ref)
    fixed = Stabiliser(target, known.sources, known.seeded, known.fresh, known.pinned)
    pin_draws(fixed, batch)
    trials.stabiliser = fixed
    trials.runs[(BASE, 0)] = [fixed.run(batch, ref.start)[0] for _ in range(3)]


def affordable_tries(context: ProbeContext, ref: Reference) -> int:
    """Reruns per question while looking for a source: about forty are asked for in all."""
    each = max(bench(context).clock.forward_s(1, len(ref.row)), 1e-6)
    return max(3, min(8, int(0.5 * context.remaining_s() / each / 5)))


def _record(
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


def _try(
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
    batch = target.pad(
        condition.rows,
        padding_side=condition.padding_side,
        padded_length=condition.padded_length,
    )
    pins = tuple(i for i, r in enumerate(condition.rows) if r == ref.row)
    assert trials.stabiliser is not None
    for repeat in range(ARM_REPEATS):
        runs = trials.stabiliser.run(batch, ref.start, condition.tested, pin_rows=pins)
        clock.saw(batch.input_ids.numel(), runs[0].wall_s)
        for row, run in zip(condition.tested, runs, strict=True):
            yield _record(context, trials, condition, row, repeat, run)


def _sweep(
    context: ProbeContext, trials: Trials, sizes: list[int], left: list[str]
) -> Iterator[Event]:
    reserve_s = (
        4 * bench(context).clock.forward_s(1 + sizes[0], len(trials.ref.row)) if sizes else 0
    )
    for place, condition in enumerate(size_conditions(trials.ref, sizes)):
        yield from _try(context, trials, condition, left, reserve_s if place else 0.0)


def _details(
    context: ProbeContext, trials: Trials, size: int, left: list[str], held: list[Observation]
) -> Iterator[Event]:
    """Neighbours and padding; padded trials go to ``held`` until it is known what they are."""
    others = other_rows(context, trials.ref)
    vocab = int(trials.base.logits.shape[-1])
    reserve_s = 4 * bench(context).clock.forward_s(1 + size, len(trials.ref.row))
    for condition in detail_conditions(trials.ref, size, others, vocab, context.plan.seed):
        for event in _try(context, trials, condition, left, reserve_s):
            if condition.padded_length > len(trials.ref.row) and isinstance(event, Observation):
                held.append(event)
            else:
                yield event


def _released(trials: Trials, held: list[Observation]) -> Iterator[Event]:
    """Padding that moves logits by rounding alone, with no token near a flip, is an intervention:
    it measures the noise floor and is no reason to blame anything."""
    harmless = batch_findings.harmless_padding(trials)
    for observation in held:
        yield replace(observation, role="intervention") if harmless else observation


def _mirrored(context: ProbeContext, trials: Trials, size: int, left: list[str]) -> Iterator[Event]:
    """The neighbour contrast from the neighbour's side, where the prompt's own side is clean."""
    assert trials.stabiliser is not None
    if batch_findings.changed_cases(trials, "neighbours"):
        return
    vocab = int(trials.base.logits.shape[-1])
    other, conditions = mirrored_conditions(trials.ref, size, vocab, context.plan.seed)
    seen = Trials(other, stabiliser=trials.stabiliser.pinned_for(context.target.pad([other.row])))
    for condition in conditions:
        yield from _try(context, seen, condition, left)
    yield from batch_findings.findings(context, seen, left, CONTENT_FACTORS)


def _history(context: ProbeContext, trials: Trials, left: list[str]) -> Iterator[Event]:
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
        yield _record(context, trials, after, 0, repeat, run)
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
    yield batch_findings.state_finding(source, ref, ("order",))
    trials.runs[(BASE, 0)] = [trials.stabiliser.run(batch, ref.start)[0] for _ in range(3)]


def _drift(
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
    yield _record(context, trials, base_condition(ref), 0, len(trials.runs[(BASE, 0)]), run)
    if run.digests == trials.base.digests:
        return
    others = [*in_between(context, ref), *(target.pad([ref.row] * n) for n in sizes)]
    yield from _carried(context, trials, batch, others)
    if trials.stabiliser.sources:
        trials.runs = {k: v for k, v in trials.runs.items() if k[0] == BASE}
        yield from _sweep(context, trials, sizes, left)


def _free(
    context: ProbeContext, trials: Trials, sizes: list[int], left: list[str]
) -> Iterator[Event]:
    """Free runs; where only they differ, the module at the step where they do."""
    stable = trials.stabiliser is None or not trials.stabiliser.sources
    sizes = sizes if stable else []
    ref = trials.ref
    changed = yield from free_runs.trials(context, ref, sizes, left)
    known = context.scratch.get("batch_case") is not None or context.scratch.get("free_case")
    if not changed or known:
        return
    smallest = min(changed)
    cost = bench(context).clock.s_per_step * len(ref.continuation) * (1 + smallest)
    if context.remaining_s() < cost:
        left.append("module of the free-running difference")
        return
    birth = first_birth(context.target, ref, 1, smallest)
    if birth is not None:
        context.scratch["free_case"] = True
        yield batch_findings.free_finding(ref, smallest, birth, len(changed), len(sizes))


def _nothing_moved(done: list[Trials], sizes: list[int]) -> Iterator[Event]:
    """A finding that rules the measured conditions out, when nothing moved any bit."""
    stable = [t for t in done if t.stabiliser is None or not t.stabiliser.sources]
    factors = batch_findings.FACTOR_ORDER
    compared = sum(batch_findings.tried(t, f) for t in stable for f in factors)
    moved = any(batch_findings.changed_cases(t, f) for t in stable for f in factors)
    if not sizes or not compared or moved or len(stable) < len(done):
        return
    yield Finding(
        layer="batch",
        rule="batch.size-sensitive",
        outcome="passed",
        summary=(
            f"logits are bit-equal in all {compared} contrasts of batch size, row, neighbours "
            "and padding"
        ),
        evidence=(Evidence("contrasts that change bits", 0, compared, "contrasts"),),
        remedy=Remedy(action="none needed at these shapes"),
    )


def _status(left: list[str], sizes: list[int], wall_s: float) -> ProbeStatus:
    if not sizes:
        reason = "only solo runs were asked for: batch size, row, neighbours and padding not varied"
        return ProbeStatus("batch", "skipped", reason, wall_s)
    if left:
        return ProbeStatus(
            "batch", "out_of_budget", "left untested: " + ", ".join(dict.fromkeys(left)), wall_s
        )
    return ProbeStatus("batch", "done", "", wall_s)
