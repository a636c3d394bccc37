"""Does a row's result depend on who shares the batch, on padding, or on what ran before?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.finding import Evidence, Finding, Remedy
from detdiag.evidence.observation import Observation
from detdiag.evidence.record import Event
from detdiag.layers import Layer
from detdiag.probes import batch_findings, batch_wording, free_runs, margins
from detdiag.probes.batch_runs import (
    ARM_REPEATS,
    base_runs,
    drift,
    history,
    padding_reserve,
    sweep,
    tried_condition,
)
from detdiag.probes.conditions import (
    Condition,
    detail_conditions,
    mirrored_conditions,
    padding_conditions,
)
from detdiag.probes.history import other_rows
from detdiag.probes.interface import ProbeContext
from detdiag.probes.runs import bench, reference
from detdiag.probes.steps import first_birth
from detdiag.probes.trials import (
    FACTOR_ORDER,
    Trials,
    changed_cases,
    harmless_padding,
    sweep_rows,
    tried,
)

BASE_REPEATS = 11
"""Undisturbed solo runs before anything else: ten A/A comparisons, where the budget allows."""
SHAPE_FACTORS = ("batch_size", "row")
CONTENT_FACTORS = ("neighbours", "padded_length", "padding_side")


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
            yield from base_runs(context, trials, BASE_REPEATS if not index else 3)
            if not index:
                yield from history(context, trials, left)
            held: list[Observation] = []
            if sizes and not index:
                for condition in padding_conditions(trials.ref):
                    yield from _kept_back(context, trials, condition, left, held)
            yield from sweep(context, trials, sizes, left)
            if not index:
                yield from drift(context, trials, sizes, left)
            if sizes and not index:
                yield from batch_findings.findings(context, trials, left, SHAPE_FACTORS)
                yield from _details(context, trials, sizes[0], left, held)
                yield from batch_findings.findings(context, trials, left, CONTENT_FACTORS)
                yield from _released(trials, held)
                yield from _mirrored(context, trials, sizes[0], left)
            yield from _free(context, trials, sizes, left)
            done.append(trials)
        if len(done) > 1:
            yield from drift(context, done[0], [], left)
        if context.scratch.get("outputs"):
            yield ("outputs", context.scratch["outputs"][:12])
        yield ("sweep", [row for t in done for row in sweep_rows(t)])
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


def _details(
    context: ProbeContext, trials: Trials, size: int, left: list[str], held: list[Observation]
) -> Iterator[Event]:
    """Neighbours and padding; padded trials go to ``held`` until it is known what they are."""
    others = other_rows(context, trials.ref)
    vocab = int(trials.base.logits.shape[-1])
    reserve_s = 4 * bench(context).clock.forward_s(1 + size, len(trials.ref.row))
    for condition in detail_conditions(trials.ref, size, others, vocab, context.plan.seed):
        padded = condition.padded_length > len(trials.ref.row)
        keep_s = reserve_s + (padding_reserve(context, trials) if padded else 0.0)
        yield from _kept_back(context, trials, condition, left, held, keep_s)


def _kept_back(
    context: ProbeContext,
    trials: Trials,
    condition: Condition,
    left: list[str],
    held: list[Observation],
    reserve_s: float = 0.0,
) -> Iterator[Event]:
    """Run ``condition``; observations of padded rows go to ``held``."""
    for event in tried_condition(context, trials, condition, left, reserve_s):
        if condition.padded_length > len(trials.ref.row) and isinstance(event, Observation):
            held.append(event)
        else:
            yield event


def _released(trials: Trials, held: list[Observation]) -> Iterator[Event]:
    """Padding that moves logits by rounding alone, with no token near a flip, is an intervention:
    it measures the noise floor and is no reason to blame anything."""
    harmless = harmless_padding(trials)
    for observation in held:
        yield replace(observation, role="intervention") if harmless else observation


def _mirrored(context: ProbeContext, trials: Trials, size: int, left: list[str]) -> Iterator[Event]:
    """The neighbour contrast from the neighbour's side, where the prompt's own side is clean."""
    assert trials.stabiliser is not None
    if changed_cases(trials, "neighbours"):
        return
    vocab = int(trials.base.logits.shape[-1])
    other, conditions = mirrored_conditions(trials.ref, size, vocab, context.plan.seed)
    seen = Trials(other, stabiliser=trials.stabiliser.pinned_for(context.target.pad([other.row])))
    for condition in conditions:
        yield from tried_condition(context, seen, condition, left)
    yield from batch_findings.findings(context, seen, left, CONTENT_FACTORS)


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
        yield batch_wording.free_finding(ref, smallest, birth, len(changed), len(sizes))


def _nothing_moved(done: list[Trials], sizes: list[int]) -> Iterator[Event]:
    """A finding that rules the measured conditions out, when nothing moved any bit."""
    stable = [t for t in done if t.stabiliser is None or not t.stabiliser.sources]
    factors = FACTOR_ORDER
    compared = sum(tried(t, f) for t in stable for f in factors)
    moved = any(changed_cases(t, f) for t in stable for f in factors)
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
