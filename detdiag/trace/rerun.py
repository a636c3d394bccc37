"""Proof of run-to-run differences: equal inputs, unequal outputs, and freezing makes them stop."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from detdiag.trace.bits import bit_equal
from detdiag.trace.calls import ForwardCall, is_compiled
from detdiag.trace.effects import SAME, Distance, distance, margin_bridge
from detdiag.trace.fixes import site_of
from detdiag.trace.freezing import Frozen, frozen_run, keep_modules, keep_sites
from detdiag.trace.graft import Site
from detdiag.trace.heat import Heat
from detdiag.trace.labels import LABELS, Comparison, Labelled, born_module, compare
from detdiag.trace.oplog import Op, Trace
from detdiag.trace.recorder import record
from detdiag.trace.result import Effect, Proof, Source, SourceKind, Status
from detdiag.trace.state import Name, Snapshot, adopt, changed, restore, snapshot
from detdiag.trace.tables import operator_table
from detdiag.trace.wording import rerun_statement

CHECKS = 4
"""Runs under an intervention; all must agree with the first."""

MAX_SOURCES = 8
FREEZE = "freeze the result"
Family = tuple[str, str, int]
"""(operator, module path without block numbers, occurrence): one call in every block."""


@dataclass
class _Run:
    model: nn.Module
    call: ForwardCall
    deadline: float
    seed: int
    start_state: Snapshot
    slowest_s: float = 0.0
    interventions: list[Effect] = field(default_factory=list)
    placebos: list[Effect] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def has_time(self, forwards: float, what: str) -> bool:
        if time.monotonic() + forwards * self.slowest_s <= self.deadline:
            return True
        self.skipped.append(what)
        return False

    def plain(self, frozen: Frozen | None = None) -> Tensor:
        start = time.monotonic()
        with frozen_run(self.model, self.start_state, frozen or Frozen()):
            out = self.call.run(self.model)
        self.slowest_s = max(self.slowest_s, time.monotonic() - start)
        return out


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
    run = _Run(model, call, start + budget_s, seed, snapshot(model))
    try:
        with torch.random.fork_rng(devices=devices):
            return _prove(run, start, pairs, placebos, tokens, row)
    finally:
        restore(model, run.start_state)


def _prove(
    run: _Run, start: float, pairs: int, placebos: int, tokens: list[str] | None, row: int
) -> Proof:
    first_logits = run.plain()
    moved = changed(run.model, run.start_state)
    adopt(run.model, run.start_state, moved)
    differing, done, example = _control(run, first_logits, pairs)
    if differing == 0:
        return _equal(run, start, first_logits, done, moved)
    whole = distance(_flat(first_logits), _flat(example))
    heat = Heat()
    traces = _differing_traces(run, Frozen(), max(3, pairs), heat)
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
    sources, frozen, left = _search(run, comparison, moved, whole)
    first = None
    if sources:
        first = {"token": whole.first_token, "module": sources[0].module, "op": sources[0].op}
        _placebos(run, traces, comparison, {s.op for s in sources}, placebos)
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


def _control(run: _Run, reference: Tensor, pairs: int) -> tuple[int, int, Tensor]:
    """(differing, runs compared, the first run that differed) against ``reference``."""
    differing, done, example = 0, 0, reference
    for _ in range(pairs):
        if done >= 2 and not run.has_time(1, f"{pairs - done} of {pairs} reruns"):
            break
        again = run.plain()
        done += 1
        if not bit_equal(reference, again):
            example = again if differing == 0 else example
            differing += 1
            if differing >= 3 and done >= min(pairs, 10):
                break
    return differing, done, example


def _equal(run: _Run, start: float, logits: Tensor, done: int, moved: tuple[Name, ...]) -> Proof:
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


def _differing_traces(
    run: _Run, frozen: Frozen, attempts: int, heat: Heat | None = None
) -> tuple[Trace, Trace] | None:
    """Two traced runs whose logits differ, or None."""
    with frozen_run(run.model, run.start_state, frozen):
        a = record(
            run.model, run.call, whole=True, watch_random=True, sink=heat.keep if heat else None
        )
    for _ in range(attempts):
        if not run.has_time(2, "another traced pair"):
            return None
        with frozen_run(run.model, run.start_state, frozen):
            b = record(
                run.model,
                run.call,
                whole=True,
                watch_random=True,
                sink=heat.compare if heat else None,
            )
        if not bit_equal(a.logits, b.logits):
            return a, b
    return None


def _search(
    run: _Run, comparison: Comparison, moved: tuple[Name, ...], whole: Distance
) -> tuple[list[Source], Frozen, Distance]:
    sources: list[Source] = []
    families: set[Family] = set()
    total, left = Frozen(), whole
    while not left.bit_equal and len(sources) < MAX_SOURCES:
        step = _step(run, comparison, total, left, moved, families)
        if step is None:
            break
        source, total = step
        sources.append(source)
        left = source.after
        if left.bit_equal:
            break
        new = _differing_traces(run, total, 3)
        if new is None:
            break
        comparison = compare(*new)
    return sources, total, left


def _step(
    run: _Run,
    comparison: Comparison,
    total: Frozen,
    left: Distance,
    moved: tuple[Name, ...],
    families: set[Family],
) -> tuple[Source, Frozen] | None:
    """Freeze the first operator that does not repeat, then wider, until something helps."""
    item = comparison.root or comparison.first
    if item is None and born_module(comparison) is None:
        return None
    for method, target, module, op, kind, make in _attempts(run, comparison, moved, families):
        if not run.has_time(CHECKS + 1, method):
            return None
        start = time.monotonic()
        new = total | make()
        after, k = _check(run, new)
        wall = time.monotonic() - start
        calls = len(new.sites) + len(new.modules) - len(total.sites) - len(total.modules)
        note = f"{k} of {CHECKS} runs differ"
        run.interventions.append(Effect(method, target, after, True, calls, wall, note))
        inside = module if method == FREEZE else None
        if after.bit_equal or _moved_on(run, new, comparison, inside):
            if item is not None:
                families.add(_family(item.op))
            source = Source(op, module, kind, method, calls, left, after, note=note)
            return source, new
    return None


Attempted = tuple[str, str, str, str, SourceKind, Callable[[], Frozen]]


def _attempts(
    run: _Run, comparison: Comparison, moved: tuple[Name, ...], families: set[Family]
) -> Iterator[Attempted]:
    item = comparison.root or comparison.first
    hidden = born_module(comparison)
    op = item.op.name if item else "outside the dispatcher"
    module = item.op.frame.path if item else (hidden or "")
    if hidden is not None and item is not None and item.reason in ("external", "region"):
        if item.op.frame.path != hidden and hidden.startswith(item.op.frame.path):
            module, op = hidden, "outside the dispatcher"
    if moved:
        owner = _owner(item, moved, module)
        names = ", ".join(f"{p}.{n}" if p else n for p, n in moved[:3])
        made = Frozen(reset=moved)
        yield "state put back before each run", names, owner, op, "state", lambda: made
    if item is not None and op != "outside the dispatcher":
        kind: SourceKind = "stochastic" if item.op.drew else "not_repeatable"
        sites = _group(comparison, item, _family(item.op) in families)
        yield FREEZE, op, module, op, kind, lambda: keep_sites(run.model, run.call, sites)
    if module:
        kind = "stochastic" if item is not None and item.op.drew else "not_repeatable"
        again = item is not None and _family(item.op) in families
        paths = _like(run.model, module) if again else frozenset([module])
        yield (
            "freeze the module's output",
            module,
            module,
            op,
            kind,
            lambda: keep_modules(run.model, run.call, paths),
        )


def _owner(item: Labelled | None, moved: tuple[Name, ...], module: str) -> str:
    owners = [path for path, _ in moved]
    if module in owners or not owners:
        return module
    return owners[0]


def _group(comparison: Comparison, item: Labelled, wide: bool) -> frozenset[Site]:
    """The call alone, or with its counterparts in other blocks: all that draw random numbers
    where this one does, all of them where a counterpart was a source before (``wide``)."""
    key = _family(item.op)
    return frozenset(
        site_of(o.op)
        for o in comparison.ops
        if o is item or (_family(o.op) == key and (wide or (item.op.drew and o.op.drew)))
    )


def _family(op: Op) -> Family:
    return op.name, re.sub(r"\.\d+", ".*", op.frame.path), op.occurrence


def _like(model: nn.Module, path: str) -> frozenset[str]:
    shape = re.sub(r"\.\d+", ".*", path)
    names = [n for n, _ in getattr(model, "_orig_mod", model).named_modules()]
    return frozenset(n for n in names if re.sub(r"\.\d+", ".*", n) == shape)


def _check(run: _Run, frozen: Frozen) -> tuple[Distance, int]:
    """Worst distance of ``CHECKS`` runs to the first, all under the intervention."""
    first = run.plain(frozen)
    worst, differing = SAME, 0
    for _ in range(CHECKS):
        again = run.plain(frozen)
        if bit_equal(first, again):
            continue
        differing += 1
        found = distance(_flat(first), _flat(again))
        worst = found if found.max_abs_logit >= worst.max_abs_logit else worst
    return worst, differing


def _moved_on(run: _Run, frozen: Frozen, comparison: Comparison, inside: str | None) -> bool:
    """Whether the first difference now comes later in the forward, and not in ``inside``: a
    module with several sources is better frozen as one."""
    traces = _differing_traces(run, frozen, 2)
    if traces is None:
        return False
    now = compare(*traces)
    before = comparison.root or comparison.first
    after = now.root or now.first
    if before is None or after is None:
        return False
    if inside is not None and after.op.frame.path == inside:
        return False
    return after.op.index > before.op.index and site_of(after.op) != site_of(before.op)


def _placebos(
    run: _Run,
    traces: tuple[Trace, Trace],
    comparison: Comparison,
    blamed: set[str],
    wanted: int,
) -> None:
    """Freeze equal operators of other classes: the runs must go on differing."""
    equal = [
        o
        for o in comparison.ops
        if o.label == "equal" and o.on_path and o.op.floating and o.op.name not in blamed
    ]
    by_name: dict[str, list[Labelled]] = {}
    for o in equal:
        by_name.setdefault(o.op.name, []).append(o)
    names = sorted(by_name)
    random.Random(run.seed).shuffle(names)
    for name in names[:wanted]:
        if not run.has_time(CHECKS + 1, f"placebo {name}"):
            return
        start = time.monotonic()
        sites = frozenset(site_of(o.op) for o in by_name[name])
        after, k = _check(run, keep_sites(run.model, run.call, sites))
        wall = time.monotonic() - start
        note = f"{k} of {CHECKS} runs differ"
        changed_something = after.bit_equal
        run.placebos.append(Effect(FREEZE, name, after, changed_something, len(sites), wall, note))


def _neutral(run: _Run, frozen: Frozen) -> bool:
    """With the sources frozen, traced and plain runs must have the same bits."""
    plain = run.plain(frozen)
    with frozen_run(run.model, run.start_state, frozen):
        traced = record(run.model, run.call, whole=True, watch_random=True)
    return bit_equal(plain, traced.logits)


def _flat(logits: Tensor) -> Tensor:
    return logits.reshape(-1, logits.shape[-1])


def _notes(run: _Run, trace: Trace, moved: tuple[Name, ...]) -> tuple[str, ...]:
    notes = list(dict.fromkeys(trace.coverage.notes))[:8]
    if moved:
        names = ", ".join(f"{p}.{n}" if p else n for p, n in moved[:6])
        notes.append(f"a forward changes the model's own state: {names}")
    if run.model.training:
        notes.append("the model is in training mode")
    if is_compiled(run.model):
        notes.append("the model is compiled; the trace ran it eagerly")
    return tuple(notes)
