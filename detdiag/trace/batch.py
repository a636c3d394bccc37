"""Proof across batch shapes: which operators make a batched row differ from the same row alone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from detdiag.trace.bits import bit_equal
from detdiag.trace.calls import ForwardCall, is_compiled
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
from detdiag.trace.recorder import Trace, record
from detdiag.trace.replay import replay
from detdiag.trace.result import Effect, Proof, Source, Status
from detdiag.trace.rows import ROW_OPS
from detdiag.trace.sources import candidates, has_experts, locate
from detdiag.trace.tables import operator_table
from detdiag.trace.wording import batch_statement

MAX_SOURCES = 12


@dataclass
class _Run:
    """State of one proof."""

    model: nn.Module
    solo: ForwardCall
    batched: ForwardCall
    row: int
    deadline: float
    seed: int
    reference: Tensor = field(default_factory=lambda: torch.empty(0))
    as_is: Tensor = field(default_factory=lambda: torch.empty(0))
    interventions: list[Effect] = field(default_factory=list)
    placebos: list[Effect] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    base: Fix = field(default_factory=Fix)

    def rows(self, logits: Tensor) -> Tensor:
        return self.batched.row_logits(logits, self.row)

    def has_time(self, forwards: float, what: str) -> bool:
        """Whether about ``forwards`` more batched runs fit; notes what was left out."""
        if time.monotonic() + forwards * self.slowest_s <= self.deadline:
            return True
        self.skipped.append(what)
        return False

    def timed(self, action: Callable[[], Tensor]) -> tuple[Tensor, float]:
        start = time.monotonic()
        out = action()
        wall = time.monotonic() - start
        self.slowest_s = max(self.slowest_s, wall)
        return out, wall


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
    run = _Run(model, solo, batched, row, start + budget_s, seed)
    with _without_training_notes(model):
        return _prove(run, start, placebos, toggles, tokens)


def _without_training_notes(model: nn.Module) -> Any:
    """Hold the random state: a proof must not move the caller's."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    return torch.random.fork_rng(devices=devices)


def _prove(
    run: _Run, start: float, placebos: int, toggles: bool, tokens: list[str] | None
) -> Proof:
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
        _directions(run, solo_trace, trace, comparison)
        sources = _own_effects(run, sources, fix)
        _placebos(run, solo_trace, trace, comparison, sources, placebos)
        if toggles:
            _toggles(run)
    status = _status(whole, last, run.placebos, placebos)
    noise = max((r["max_ulp"] or 0 for r in replays), default=None)
    count = sum(r["differing"] or 0 for r in replays) if replays else None
    bridge = margin_bridge(run.reference, run.as_is, operator_ulp=noise, operator_count=count)
    return Proof(
        mode="batch",
        status=status,
        statement=batch_statement(status, whole, sources, run.interventions, run.placebos),
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


def _traced(run: _Run, solo_trace: Trace, fix: Fix, heat: Heat | None = None) -> Trace:
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


def _same_tokens(run: _Run) -> bool:
    a, b = run.solo.lead, run.batched.lead
    if a.dim() < 2 or b.dim() < 2:
        return True
    x = a[0, list(run.solo.layouts()[0].real[0])]
    y = b[run.row, list(run.batched.layouts()[0].real[run.row])]
    same_forced = not run.solo.forced or run.solo.forced[0] == run.batched.forced[run.row]
    return bit_equal(x, y) and same_forced


def _check_instrument(
    run: _Run, plain_solo: Tensor, plain: Tensor, solo_trace: Trace, trace: Trace
) -> Proof | None:
    """Neutrality and repeatability: the traced runs must give the plain runs' bits."""
    if bit_equal(plain_solo, solo_trace.logits) and bit_equal(plain, trace.logits):
        return None
    again_solo, again = run.solo.run(run.model), run.batched.run(run.model)
    if not (bit_equal(plain_solo, again_solo) and bit_equal(plain, again)):
        text = "identical runs differ, so a batch comparison proves nothing"
        return _early(run, "not_repeatable", None, text)
    return _early(run, "not_neutral", False, "the trace changes the logits of this model")


def _early(run: _Run, status: Status, neutral: bool | None, text: str) -> Proof:
    then = {
        "not_repeatable": "look at run-to-run differences first",
        "not_neutral": "no operator is named",
        "inputs_differ": "compare the inputs first",
    }.get(status, "")
    return Proof("batch", status, (text, "no intervention was made", then), neutral=neutral)


def _search(
    run: _Run, solo_trace: Trace, trace: Trace, comparison: Comparison
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
    run: _Run,
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


def _replay(run: _Run, comparison: Comparison) -> tuple[dict[str, Any], ...]:
    born = [o for o in comparison.ops if o.label == "born" and o.on_path and o.op.floating]
    if not born or not run.has_time(1, "replay on equal input"):
        return ()
    return replay(run.model, run.batched, [site_of(o.op) for o in born[:8]], run.row)


def _directions(run: _Run, solo_trace: Trace, trace: Trace, comparison: Comparison) -> None:
    """Graft the first born result both ways, and the row in a batch of copies."""
    first = comparison.first
    if first is not None and first.label == "born" and first.other is not None:
        _graft_into_batch(run, solo_trace, trace, first)
        _graft_into_solo(run, solo_trace, trace, first)
    if run.has_time(1, "constant shape"):
        copies = run.batched.repeated(run.row)
        logits, wall = run.timed(lambda: copies.run(run.model))
        left = distance(run.as_is, run.rows(logits))
        note = "the shape alone reproduces the batched bits"
        if not left.bit_equal:
            note = "the neighbours' content matters, not the shape alone"
        run.interventions.append(
            Effect("constant shape", "the row in a batch of copies", left, True, 0, wall, note)
        )


def _graft_into_batch(run: _Run, solo_trace: Trace, trace: Trace, first: Labelled) -> None:
    if not run.has_time(1, "graft of the first born result into the batch"):
        return
    fix = graft_fix(run.model, run.solo, solo_trace, trace, [first.op], run.row)
    if fix is None:
        return
    logits, wall = run.timed(lambda: run_with(run.model, run.batched, fix, Counts()))
    left = distance(run.reference, run.rows(logits))
    moved = not bit_equal(run.rows(logits), run.as_is)
    run.interventions.append(Effect("graft solo into batch", _name(first), left, moved, 1, wall))


def _graft_into_solo(run: _Run, solo_trace: Trace, trace: Trace, first: Labelled) -> None:
    from detdiag.trace.fixes import output_cuts
    from detdiag.trace.graft import Store, captured, grafted

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
            _name(first),
            left,
            not left.bit_equal,
            1,
            time.monotonic() - start,
            "the divergence appears in the solo run" if not left.bit_equal else "no effect",
        )
    )


def _name(item: Labelled) -> str:
    return f"{item.op.name} in {item.op.frame.path or 'the model'}"


def _own_effects(run: _Run, sources: list[Source], fixes: list[Fix]) -> list[Source]:
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


def _placebos(
    run: _Run,
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
    from detdiag.trace.match import ancestors

    path = ancestors(trace)
    names: dict[str, int] = {}
    for op in trace.ops:
        batched = any(s.batched for s in op.inputs) and any(s.batched for s in op.outputs)
        if op.index in path and op.floating and batched and op.name not in blamed:
            names[op.name] = names.get(op.name, 0) + 1
    heavy = [n for n in names if n in ROW_OPS]
    light = [n for n in names if n not in ROW_OPS and not n.endswith("_") and n != "aten.to"]
    order = ["aten.scaled_dot_product_attention", "aten.mean"]
    heavy.sort(key=lambda n: (order.index(n) if n in order else len(order), -names[n]))
    return heavy + sorted(light, key=lambda n: -names[n])


def _placebo_graft(run: _Run, solo_trace: Trace, trace: Trace, comparison: Comparison) -> None:
    equal = [
        o
        for o in comparison.ops
        if o.label == "equal"
        and o.on_path
        and o.op.floating
        and any(s.batched for s in o.op.outputs)
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
            _name(item),
            distance(run.reference, rows),
            not bit_equal(rows, run.as_is),
            1,
            wall,
        )
    )


def _toggles(run: _Run) -> None:
    from detdiag.trace.toggles import TOGGLES

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


def _status(whole: Distance, last: Distance, placebos: list[Effect], wanted: int) -> Status:
    if whole.bit_equal:
        return "equal"
    if not last.bit_equal:
        return "partial" if last.max_abs_logit < whole.max_abs_logit else "unproven"
    enough = len(placebos) >= wanted
    quiet = not any(p.changed for p in placebos)
    return "proven" if enough and quiet else "partial"


def _counts(comparison: Comparison) -> dict[str, int]:
    return {label: comparison.count(label) for label in LABELS}


def _notes(run: _Run, trace: Trace, comparison: Comparison) -> tuple[str, ...]:
    notes = list(dict.fromkeys(trace.coverage.notes))[:8]
    if is_compiled(run.model):
        notes.append("the model is compiled; the trace ran it eagerly")
    if comparison.count("unalignable"):
        notes.append(
            f"{comparison.count('unalignable')} operators could not be aligned to the row; "
            "their modules were judged by inputs and outputs"
        )
    return tuple(notes)
