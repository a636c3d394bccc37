"""Grafts both ways, constant shape, placebos and toggles of a proof across batch shapes."""

from __future__ import annotations

import random
import time
from functools import partial

from detdiag.trace.attempt import Run, name_of
from detdiag.trace.bits import bit_equal
from detdiag.trace.effects import distance
from detdiag.trace.fixes import Counts, Fix, graft_fix, output_cuts, run_with, site_of
from detdiag.trace.graft import Store, captured, grafted
from detdiag.trace.labels import Comparison, Labelled
from detdiag.trace.match import ancestors
from detdiag.trace.oplog import Trace
from detdiag.trace.result import Effect, Source
from detdiag.trace.rows import ROW_OPS
from detdiag.trace.toggles import TOGGLES


def directions(run: Run, solo_trace: Trace, trace: Trace, comparison: Comparison) -> None:
    """Graft the first born result both ways, and the row in a batch of copies."""
    first = comparison.first
    if first is not None and first.label == "born" and first.other is not None:
        _graft_into_batch(run, solo_trace, trace, first)
        _graft_into_solo(run, solo_trace, trace, first)
    if run.batched.rows > 1 and run.has_time(1, "constant shape"):
        copies = run.batched.repeated(run.row)
        logits, wall = run.timed(lambda: copies.run(run.model))
        left = distance(run.as_is, run.rows(logits))
        note = "the shape alone reproduces the batched bits"
        if not left.bit_equal:
            note = "the neighbours' content matters, not the shape alone"
        run.interventions.append(
            Effect("constant shape", "the row in a batch of copies", left, True, 0, wall, note)
        )


def _graft_into_batch(run: Run, solo_trace: Trace, trace: Trace, first: Labelled) -> None:
    if not run.has_time(1, "graft of the first born result into the batch"):
        return
    fix = graft_fix(run.model, run.solo, solo_trace, trace, [first.op], run.row)
    if fix is None:
        return
    logits, wall = run.timed(lambda: run_with(run.model, run.batched, fix, Counts()))
    left = distance(run.reference, run.rows(logits))
    moved = not bit_equal(run.rows(logits), run.as_is)
    run.interventions.append(Effect("graft solo into batch", name_of(first), left, moved, 1, wall))


def _graft_into_solo(run: Run, solo_trace: Trace, trace: Trace, first: Labelled) -> None:

    if first.other is None or not run.has_time(1, "graft of the first born result into solo"):
        return
    cuts = output_cuts(first.op, first.other, trace, solo_trace, run.row)
    if cuts is None:
        return
    site, twin = site_of(first.op), site_of(first.other)
    store = Store()
    names = frozenset([first.op.name])
    with captured(run.model, lambda s: s == site, names, store, {site: cuts}):
        run.batched.run(run.model)
    values = {twin: store.values.get(site, [])}
    start = time.monotonic()
    with grafted(run.model, values):
        logits = run.solo.row_logits(run.solo.run(run.model), 0)
    left = distance(run.reference, logits)
    run.interventions.append(
        Effect(
            "graft batch into solo",
            name_of(first),
            left,
            not left.bit_equal,
            1,
            time.monotonic() - start,
            "the divergence appears in the solo run" if not left.bit_equal else "no effect",
        )
    )


def placebo_runs(
    run: Run,
    solo_trace: Trace,
    trace: Trace,
    comparison: Comparison,
    sources: list[Source],
    wanted: int,
) -> None:
    """The same intervention on other operator classes, and one graft at a random equal operator."""
    blamed = {s.op for s in sources}
    done = 0
    for op in _placebo_ops(trace, blamed):
        if done >= wanted or not run.has_time(1.5, f"placebo {op}"):
            break
        counts = Counts()
        fix = run.base | Fix(ops=frozenset([op]))
        logits, wall = run.timed(partial(run_with, run.model, run.batched, fix, counts))
        if counts.total == 0:
            continue
        done += 1
        rows = run.rows(logits)
        moved = not bit_equal(rows, run.as_is)
        left = distance(run.reference, rows)
        run.placebos.append(Effect("row by row", op, left, moved, counts.total, wall))
    _placebo_graft(run, solo_trace, trace, comparison)


def _placebo_ops(trace: Trace, blamed: set[str]) -> list[str]:
    """Other operator classes that can run row by row, arithmetic on whole rows first."""

    path = ancestors(trace)
    names: dict[str, int] = {}
    for op in trace.ops:
        rowwise = any(s.has_row for s in op.inputs) and any(s.has_row for s in op.outputs)
        if op.index in path and op.floating and rowwise and op.name not in blamed:
            names[op.name] = names.get(op.name, 0) + 1
    heavy = [n for n in names if n in ROW_OPS]
    light = [n for n in names if n not in ROW_OPS and not n.endswith("_") and n != "aten.to"]
    order = ["aten.scaled_dot_product_attention", "aten.mean"]
    heavy.sort(key=lambda n: (order.index(n) if n in order else len(order), -names[n]))
    return heavy + sorted(light, key=lambda n: -names[n])


def _placebo_graft(run: Run, solo_trace: Trace, trace: Trace, comparison: Comparison) -> None:
    equal = [
        o
        for o in comparison.ops
        if o.label == "equal"
        and o.on_path
        and o.op.floating
        and any(s.has_row for s in o.op.outputs)
    ]
    if not equal or not run.has_time(1, "graft at a random equal operator"):
        return
    item = random.Random(run.seed).choice(equal)
    fix = graft_fix(run.model, run.solo, solo_trace, trace, [item.op], run.row)
    if fix is None:
        return
    logits, wall = run.timed(lambda: run_with(run.model, run.batched, fix, Counts()))
    rows = run.rows(logits)
    run.placebos.append(
        Effect(
            "graft at an equal operator",
            name_of(item),
            distance(run.reference, rows),
            not bit_equal(rows, run.as_is),
            1,
            wall,
        )
    )


def toggle_runs(run: Run) -> None:

    for name, context in TOGGLES.items():
        if not run.has_time(2, f"toggle {name}"):
            return
        start = time.monotonic()
        try:
            with context():
                a = run.solo.row_logits(run.solo.run(run.model), 0)
                b = run.rows(run.batched.run(run.model))
        except RuntimeError as error:
            run.skipped.append(f"toggle {name}: {str(error).splitlines()[0]}")
            continue
        left = distance(a, b)
        moved = not bit_equal(b, run.as_is)
        wall = time.monotonic() - start
        run.interventions.append(Effect("toggle", name, left, moved, 0, wall))
