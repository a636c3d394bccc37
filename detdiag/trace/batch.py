"""Proof across batch shapes: which operators make a batched row differ from the same row alone."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from detdiag.trace.attempt import Run
from detdiag.trace.bits import bit_equal
from detdiag.trace.calls import ForwardCall, is_compiled
from detdiag.trace.controls import directions, placebo_runs, toggle_runs
from detdiag.trace.effects import Distance, distance, margin_bridge
from detdiag.trace.fixes import (
    Counts,
    Fix,
    applied,
    graft_fix,
    masked_steps,
    run_with,
    site_of,
)
from detdiag.trace.heat import Heat
from detdiag.trace.labels import LABELS, Comparison, Labelled, compare
from detdiag.trace.oplog import Trace
from detdiag.trace.recorder import record
from detdiag.trace.replay import replay
from detdiag.trace.result import Effect, Proof, Source, Status
from detdiag.trace.sources import candidates, has_experts, locate
from detdiag.trace.tables import operator_table
from detdiag.trace.wording import batch_statement

MAX_SOURCES = 12


def prove_batch(
    model: nn.Module,
    solo: ForwardCall,
    batched: ForwardCall,
    *,
    row: int = 0,
    budget_s: float = 60.0,
    placebos: int = 2,
    toggles: bool = True,
    tokens: list[str] | None = None,
    seed: int = 0,
) -> Proof:
    """Find and prove the operators that make row ``row`` of ``batched`` differ from ``solo``.

    ``solo`` holds the same tokens in its row 0. ``tokens`` names the row's real tokens for the
    heatmap. The proof stops looking further when ``budget_s`` wall seconds are used and lists what
    it skipped. Raises :class:`DetdiagError` while a CUDA graph is being captured.
    """
    start = time.monotonic()
    run = Run(model, solo, batched, row, start + budget_s, seed)
    with _without_training_notes(model):
        return _prove(run, start, placebos, toggles, tokens)


def _without_training_notes(model: nn.Module) -> Any:
    """Hold the random state: a proof must not move the caller's."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    return torch.random.fork_rng(devices=devices)


def _prove(run: Run, start: float, placebos: int, toggles: bool, tokens: list[str] | None) -> Proof:
    if not _same_tokens(run):
        return _early(run, "inputs_differ", None, "the row holds other tokens than the solo run")
    plain_solo = run.solo.run(run.model)
    plain, _ = run.timed(lambda: run.batched.run(run.model))
    heat = Heat()
    solo_trace = record(run.model, run.solo, sink=heat.keep)
    run.base = Fix(keep_mask=masked_steps(solo_trace))
    trace = _traced(run, solo_trace, Fix(), heat)
    run.reference = run.solo.row_logits(plain_solo, 0)
    run.as_is = run.rows(plain)
    broken = _check_instrument(run, plain_solo, plain, solo_trace, trace)
    if broken is not None:
        return broken
    whole = distance(run.reference, run.as_is)
    comparison = compare(solo_trace, trace)
    sources, fix, last = _search(run, solo_trace, trace, comparison)
    first = None
    if sources:
        first = {"token": whole.first_token, "module": sources[0].module, "op": sources[0].op}
    replays = _replay(run, comparison)
    if not whole.bit_equal and sources:
        directions(run, solo_trace, trace, comparison)
        sources = _own_effects(run, sources, fix)
        placebo_runs(run, solo_trace, trace, comparison, sources, placebos)
        if toggles:
            toggle_runs(run)
    status = _status(whole, last, run.placebos, placebos)
    noise = max((r["max_ulp"] or 0 for r in replays), default=None)
    count = sum(r["differing"] or 0 for r in replays) if replays else None
    bridge = margin_bridge(run.reference, run.as_is, operator_ulp=noise, operator_count=count)
    return Proof(
        mode="batch",
        status=status,
        statement=batch_statement(status, whole, sources, run.placebos, _where(run.batched)),
        neutral=True,
        first_divergence=first,
        difference=whole,
        sources=tuple(s for s in sources),
        interventions=tuple(run.interventions),
        placebos=tuple(run.placebos),
        operators=operator_table(comparison, replays),
        heatmap=heat.table(first, tokens),
        coverage=trace.coverage.to_dict(),
        labels=_counts(comparison),
        margins=bridge,
        replay=replays,
        skipped=tuple(dict.fromkeys(run.skipped)),
        notes=_notes(run, trace, comparison),
        wall_s=time.monotonic() - start,
    )


def _traced(run: Run, solo_trace: Trace, fix: Fix, heat: Heat | None = None) -> Trace:
    counts = Counts()
    call = fix.call(run.batched)
    with applied(run.model, call, fix, counts):
        return record(
            run.model,
            call,
            row=run.row,
            solo=solo_trace,
            sink=heat.compare if heat is not None else None,
        )


def _same_tokens(run: Run) -> bool:
    a, b = run.solo.lead, run.batched.lead
    if a.dim() < 2 or b.dim() < 2:
        return True
    x = a[0, list(run.solo.layouts()[0].real[0])]
    y = b[run.row, list(run.batched.layouts()[0].real[run.row])]
    same_forced = not run.solo.forced or run.solo.forced[0] == run.batched.forced[run.row]
    return bit_equal(x, y) and same_forced


def _check_instrument(
    run: Run, plain_solo: Tensor, plain: Tensor, solo_trace: Trace, trace: Trace
) -> Proof | None:
    """Neutrality and repeatability: the traced runs must give the plain runs' bits."""
    if bit_equal(plain_solo, solo_trace.logits) and bit_equal(plain, trace.logits):
        return None
    again_solo, again = run.solo.run(run.model), run.batched.run(run.model)
    if not (bit_equal(plain_solo, again_solo) and bit_equal(plain, again)):
        text = "identical runs differ, so a batch comparison proves nothing"
        return _early(run, "not_repeatable", None, text)
    return _early(run, "not_neutral", False, "the trace changes the logits of this model")


def _early(run: Run, status: Status, neutral: bool | None, text: str) -> Proof:
    then = {
        "not_repeatable": "look at run-to-run differences first",
        "not_neutral": "no operator is named",
        "inputs_differ": "compare the inputs first",
    }.get(status, "")
    return Proof("batch", status, (text, "no intervention was made", then), neutral=neutral)


def _search(
    run: Run, solo_trace: Trace, trace: Trace, comparison: Comparison
) -> tuple[list[Source], list[Fix], Distance]:
    """Find sources one after the other, each with those before it fixed."""
    sources: list[Source] = []
    fixes: list[Fix] = []
    total = run.base
    left = distance(run.reference, run.rows(trace.logits))
    while not left.bit_equal and len(sources) < MAX_SOURCES and comparison.first is not None:
        step = _step(run, solo_trace, trace, comparison, total, left)
        if step is None:
            break
        source, fix, trace, comparison = step
        sources.append(source)
        fixes.append(fix)
        total = total | fix
        left = source.after
    return sources, fixes, left


def _step(
    run: Run,
    solo_trace: Trace,
    trace: Trace,
    comparison: Comparison,
    total: Fix,
    left: Distance,
) -> tuple[Source, Fix, Trace, Comparison] | None:
    item = comparison.root or comparison.first
    assert item is not None
    for attempt in candidates(run.model, trace, comparison, total):
        if not run.has_time(1.5, f"intervention on {item.op.name}"):
            break
        fix = attempt.fix
        if fix is None:
            fix = graft_fix(run.model, run.solo, solo_trace, trace, attempt.graft, run.row)
        if fix is None:
            continue
        start = time.monotonic()
        both = total | fix
        call = both.call(run.batched)
        counts = Counts()
        try:
            with applied(run.model, call, both, counts):
                new = record(run.model, call, row=run.row, solo=solo_trace)
        except (TypeError, RuntimeError, IndexError, ValueError) as error:
            run.skipped.append(f"{attempt.method}: {type(error).__name__}")
            continue
        wall = time.monotonic() - start
        after = distance(run.reference, run.rows(new.logits))
        now = compare(solo_trace, new, opaque=both.modules)
        moved = not bit_equal(run.rows(new.logits), run.rows(trace.logits))
        own = _own_calls(attempt.fix, fix, counts)
        run.interventions.append(Effect(attempt.method, attempt.target, after, moved, own, wall))
        if after.bit_equal or _later(comparison.first, now):
            op, module, kind = locate(trace, comparison, attempt)
            source = Source(
                op=op,
                module=module,
                kind=kind,
                experts=has_experts(run.model, module),
                fix=attempt.method,
                calls=own,
                before=left,
                after=after,
                born=sum(o.label == "born" and o.op.name == op for o in comparison.ops),
            )
            return source, fix, new, now
    return None


def _own_calls(direct: Fix | None, fix: Fix, counts: Counts) -> int:
    if direct is None:
        return sum(counts.grafts[s[0]] and 1 for s in fix.grafts)
    if direct.ops:
        return sum(counts.rows.calls[op] for op in direct.ops)
    return sum(counts.modules[m] for m in direct.modules) or int(direct.positions)


def _later(item: Labelled | None, now: Comparison) -> bool:
    """Whether the first divergence moved on (in the order of the solo run)."""
    if now.first is None or item is None:
        return False
    new = now.first
    if new.op.frame == item.op.frame and new.op.name == item.op.name:
        return False
    if new.other is None or item.other is None:
        return new.op.frame != item.op.frame
    return new.other.index > item.other.index


def _replay(run: Run, comparison: Comparison) -> tuple[dict[str, Any], ...]:
    born = [o for o in comparison.ops if o.label == "born" and o.on_path and o.op.floating]
    if not born or not run.has_time(1, "replay on equal input"):
        return ()
    return replay(run.model, run.batched, [site_of(o.op) for o in born[:8]], run.row)


def _own_effects(run: Run, sources: list[Source], fixes: list[Fix]) -> list[Source]:
    """For several sources: what is left when all but one are fixed."""
    from dataclasses import replace

    if len(sources) < 2:
        return sources
    out = []
    for i, source in enumerate(sources):
        if not run.has_time(1.5, "effect of each source alone"):
            out.append(source)
            continue
        others = run.base
        for j, fix in enumerate(fixes):
            others = others | fix if j != i else others
        logits, _ = run.timed(partial(run_with, run.model, run.batched, others, Counts()))
        out.append(replace(source, alone=distance(run.reference, run.rows(logits))))
    return out


def _status(whole: Distance, last: Distance, placebos: list[Effect], wanted: int) -> Status:
    if whole.bit_equal:
        return "equal"
    if not last.bit_equal:
        return "partial" if last.max_abs_logit < whole.max_abs_logit else "unproven"
    enough = len(placebos) >= wanted
    quiet = not any(p.changed for p in placebos)
    return "proven" if enough and quiet else "partial"


def _where(call: ForwardCall) -> str:
    layout = call.layouts()[0]
    if layout.n == 1:
        return "a padded run"
    return "a padded batch" if layout.any_padded else "the batch"


def _counts(comparison: Comparison) -> dict[str, int]:
    return {label: comparison.count(label) for label in LABELS}


def _notes(run: Run, trace: Trace, comparison: Comparison) -> tuple[str, ...]:
    notes = list(dict.fromkeys(trace.coverage.notes))[:8]
    if is_compiled(run.model):
        notes.append("the model is compiled; the trace ran it eagerly")
    if comparison.count("unalignable"):
        notes.append(
            f"{comparison.count('unalignable')} operators could not be aligned to the row; "
            "their modules were judged by inputs and outputs"
        )
    return tuple(notes)
