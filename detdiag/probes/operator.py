"""Do identical conditions repeat to the bit, and which switch changes what?"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import replace

from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.finding import Evidence, Finding
from detdiag.evidence.record import Event
from detdiag.layers import Layer
from detdiag.probes import batch_wording, operator_findings
from detdiag.probes._compare import interval95
from detdiag.probes.batch_runs import affordable_tries
from detdiag.probes.conditions import Condition, base_condition
from detdiag.probes.history import carried, in_between
from detdiag.probes.interface import ProbeContext
from detdiag.probes.repeatability import explain
from detdiag.probes.runs import Reference, Run, bench, forced_observation, reference, run_padded
from detdiag.probes.stabiliser import Source, Stabiliser, differing
from detdiag.probes.toggle_runs import toggle_events

BATCH_SHARE = 0.4
"""Share of the time left that reruns of a batch may take."""
MIN_PAIRS = 10
"""A/A reruns that are made whatever the budget says."""


class OperatorProbe:
    """A/A reruns at one shape, solo and at the largest batch, then switches one at a time."""

    layer: Layer = "operator"

    def run(self, context: ProbeContext) -> Iterator[Event]:
        began = time.monotonic()
        left: list[str] = []
        if not context.target.prompts:
            yield ProbeStatus("operator", "skipped", "no prompt to run")
            return
        ref = reference(context, context.target.prompts[0])
        solo = base_condition(ref)
        earlier = bench(context).base.get(ref.query, [])
        k, n = yield from _reruns(context, ref, solo, earlier, left)
        counts = [(solo, k, n)]
        found = yield from _explained(context, ref, solo, k, n, left)
        largest = _batch_to_rerun(context, ref)
        if largest > 1 and not found.sources:
            batched = Condition(
                f"batch of {largest}", (ref.row,) * largest, len(ref.row), tested=(0, largest - 1)
            )
            kb, nb = yield from _reruns(context, ref, batched, [], left, share=BATCH_SHARE)
            if nb:
                counts.append((batched, kb, nb))
                found = yield from _explained(context, ref, batched, kb, nb, left)
        if not any(k for _, k, _ in counts):
            yield _passed(counts)
        yield from toggle_events(context, ref, counts[0][1:], left)
        state = "out_of_budget" if left else "done"
        reason = "left untested: " + ", ".join(dict.fromkeys(left)) if left else ""
        yield ProbeStatus("operator", state, reason, time.monotonic() - began)  # type: ignore[arg-type]


def _batch_to_rerun(context: ProbeContext, ref: Reference) -> int:
    """The largest batch size asked for of which MIN_PAIRS reruns fit, else the smallest."""
    sizes = sorted(n for n in set(context.plan.batch_sizes) if n > 1)
    clock = bench(context).clock
    allowed = BATCH_SHARE * context.remaining_s()
    fitting = [n for n in sizes if clock.forward_s(n, len(ref.row), MIN_PAIRS + 1) <= allowed]
    return max(fitting, default=min(sizes, default=1))


def _reruns(
    context: ProbeContext,
    ref: Reference,
    condition: Condition,
    earlier: list[Run],
    left: list[str],
    share: float = 0.5,
) -> Generator[Event, None, tuple[int, int]]:
    """Rerun until ``plan.repeats`` A/A pairs stand, or ``share`` of the time left is used.

    Returns (differing, reruns). The first MIN_PAIRS solo reruns are made in any case; a batch is
    left out when not even three would fit.
    """
    target, clock = context.target, bench(context).clock
    batch = target.pad(condition.rows)
    runs = list(earlier)
    until = time.monotonic() + share * max(context.remaining_s(), 0.0)
    solo = len(condition.rows) == 1
    need = MIN_PAIRS + 1 if solo else 3
    if not solo and clock.forward_s(1, condition.tokens, 3) > until - time.monotonic():
        left.append(f"reruns of a {condition.name}")
        return 0, 0
    while len(runs) <= context.plan.repeats:
        each = clock.forward_s(1, condition.tokens)
        if len(runs) >= need and time.monotonic() + each > until:
            left.append(f"reruns {len(runs)} to {context.plan.repeats} of {condition.name}")
            break
        made = run_padded(target, batch, ref.start, condition.tested, clock=clock)
        for row, run in zip(condition.tested, made, strict=True):
            yield forced_observation(
                bench(context).next_id("rerun"),
                ref,
                run,
                condition.factors(row, 100 + len(runs)),
                target.tokenizer,
            )
        runs.append(made[0])
    return differing(runs), max(len(runs) - 1, 0)


def _explained(
    context: ProbeContext, ref: Reference, condition: Condition, k: int, n: int, left: list[str]
) -> Generator[Event, None, Stabiliser]:
    """Sources of differing reruns as findings; returns the :class:`Stabiliser`."""
    known: Stabiliser | None = context.scratch.get("stabiliser")
    counted = context.scratch.get("unstable")
    if known is None or (k and not known.sources):
        known = Stabiliser(context.target)
        if k:
            batch = context.target.pad(condition.rows)
            known = explain(
                context.target,
                batch,
                ref.start,
                0,
                k,
                n,
                tries=affordable_tries(context, ref),
                time_left=context.remaining_s,
            )
            if not known.sources:
                carried(known, ref, context.target.pad([ref.row]), in_between(context, ref), k)
            context.scratch["stabiliser"] = known
            yield from batch_wording.state_findings(known.sources, ref)
    if counted is not None and k:
        known.sources = [_recounted(s, counted, k, n) for s in known.sources]
    yield from operator_findings.findings(context, ref, known, condition, k, n, left)
    return known


def _recounted(source: Source, counted: tuple[int, int], k: int, n: int) -> Source:
    """A source counted over the first reruns gets the full count."""
    return replace(source, k=k, n=n) if (source.k, source.n) == counted else source


def _passed(counts: list[tuple[Condition, int, int]]) -> Finding:
    text = "; ".join(f"{k} of {n} reruns of {c.name} differ" for c, k, n in counts)
    return Finding(
        layer="operator",
        rule="operator.not-repeatable",
        outcome="passed",
        summary=f"identical conditions repeat to the bit: {text}",
        evidence=tuple(
            Evidence("A/A reruns that differ", k, n, "reruns", interval95(k, n), (c.name,))
            for c, k, n in counts
        ),
    )
