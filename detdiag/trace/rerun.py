"""Proof of run-to-run differences: equal inputs, unequal outputs, and freezing makes them stop."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from detdiag.trace.bits import bit_equal
from detdiag.trace.calls import ForwardCall, is_compiled
from detdiag.trace.effects import SAME, distance, margin_bridge
from detdiag.trace.freezing import Frozen, frozen_run
from detdiag.trace.heat import Heat
from detdiag.trace.labels import LABELS, compare
from detdiag.trace.oplog import Trace
from detdiag.trace.recorder import record
from detdiag.trace.rerun_search import placebo_freezes, search
from detdiag.trace.reruns import Reruns, control, differing_traces, flat
from detdiag.trace.result import Proof, Status
from detdiag.trace.state import Name, adopt, changed, restore, snapshot
from detdiag.trace.tables import operator_table
from detdiag.trace.wording import rerun_statement


def prove_rerun(
    model: nn.Module,
    call: ForwardCall,
    *,
    pairs: int = 20,
    budget_s: float = 60.0,
    placebos: int = 2,
    tokens: list[str] | None = None,
    row: int = 0,
    seed: int = 0,
) -> Proof:
    """Run ``call`` again under identical conditions and name what does not repeat.

    The first run is compared with ``pairs`` more to the bit. Where any differs, two traced runs
    show the first operator with equal inputs and other outputs; freezing its result must make
    the runs agree, freezing others must not. The model's own state and the random state are put
    back at the end. Raises :class:`DetdiagError` while a CUDA graph is being captured.
    """
    start = time.monotonic()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    run = Reruns(model, call, start + budget_s, seed, snapshot(model))
    try:
        with torch.random.fork_rng(devices=devices):
            return _prove(run, start, pairs, placebos, tokens, row)
    finally:
        restore(model, run.start_state)


def _prove(
    run: Reruns, start: float, pairs: int, placebos: int, tokens: list[str] | None, row: int
) -> Proof:
    first_logits = run.plain()
    moved = changed(run.model, run.start_state)
    adopt(run.model, run.start_state, moved)
    differing, done, example = control(run, first_logits, pairs)
    if differing == 0:
        return _equal(run, start, first_logits, done, moved)
    whole = distance(flat(first_logits), flat(example))
    heat = Heat()
    traces = differing_traces(run, Frozen(), max(3, pairs), heat)
    if traces is None:
        text = "the traced runs agreed, so no operator can be named"
        return Proof(
            "rerun",
            "unproven",
            rerun_statement(differing, done, (), (), text),
            difference=whole,
            differing=differing,
            runs=done,
            skipped=tuple(run.skipped),
            wall_s=time.monotonic() - start,
        )
    comparison = compare(*traces)
    sources, frozen, left = search(run, comparison, moved, whole)
    first = None
    if sources:
        first = {"token": whole.first_token, "module": sources[0].module, "op": sources[0].op}
        placebo_freezes(run, traces, comparison, {s.op for s in sources}, placebos)
    neutral = _neutral(run, frozen) if left.bit_equal and sources else None
    loud = any(p.remaining.bit_equal for p in run.placebos)
    whole_story = left.bit_equal and len(run.placebos) >= placebos and not loud
    status: Status = "proven" if whole_story else "partial"
    if not sources:
        status = "unproven"
    return Proof(
        mode="rerun",
        status=status if neutral is not False else "not_neutral",
        statement=rerun_statement(differing, done, sources, run.placebos),
        neutral=neutral,
        first_divergence=first,
        difference=whole,
        sources=tuple(sources),
        interventions=tuple(run.interventions),
        placebos=tuple(run.placebos),
        operators=operator_table(comparison, ()),
        heatmap=heat.table(first, tokens),
        coverage=traces[1].coverage.to_dict(),
        labels={label: comparison.count(label) for label in LABELS},
        margins=margin_bridge(
            run.call.row_logits(first_logits, row), run.call.row_logits(example, row)
        ),
        differing=differing,
        runs=done,
        skipped=tuple(dict.fromkeys(run.skipped)),
        notes=_notes(run, traces[1], moved),
        wall_s=time.monotonic() - start,
    )


def _equal(run: Reruns, start: float, logits: Tensor, done: int, moved: tuple[Name, ...]) -> Proof:
    trace = record(run.model, run.call, whole=True, watch_random=True)
    neutral = bit_equal(trace.logits, logits)
    drew = [op for op in trace.ops if op.drew]
    notes = list(_notes(run, trace, moved))
    if drew:
        names = sorted({f"{op.name} in {op.frame.path or 'the model'}" for op in drew})
        notes.append(f"random numbers are drawn in the forward ({', '.join(names[:4])})")
    return Proof(
        "rerun",
        "equal" if neutral else "not_neutral",
        rerun_statement(0, done, (), ()),
        neutral=neutral,
        difference=SAME,
        coverage=trace.coverage.to_dict(),
        differing=0,
        runs=done,
        skipped=tuple(run.skipped),
        notes=tuple(notes),
        wall_s=time.monotonic() - start,
    )


def _neutral(run: Reruns, frozen: Frozen) -> bool:
    """With the sources frozen, traced and plain runs must have the same bits."""
    plain = run.plain(frozen)
    with frozen_run(run.model, run.start_state, frozen):
        traced = record(run.model, run.call, whole=True, watch_random=True)
    return bit_equal(plain, traced.logits)


def _notes(run: Reruns, trace: Trace, moved: tuple[Name, ...]) -> tuple[str, ...]:
    notes = list(dict.fromkeys(trace.coverage.notes))[:8]
    if moved:
        names = ", ".join(f"{p}.{n}" if p else n for p, n in moved[:6])
        notes.append(f"a forward changes the model's own state: {names}")
    if run.model.training:
        notes.append("the model is in training mode")
    if is_compiled(run.model):
        notes.append("the model is compiled; the trace ran it eagerly")
    return tuple(notes)
