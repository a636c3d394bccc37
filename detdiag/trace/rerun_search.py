"""Find what does not repeat: freeze the first operator that differs, then wider."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterator

from torch import nn

from detdiag.trace.effects import Distance
from detdiag.trace.fixes import site_of
from detdiag.trace.freezing import Frozen, keep_modules, keep_sites
from detdiag.trace.graft import Site
from detdiag.trace.labels import Comparison, Labelled, born_module, compare
from detdiag.trace.oplog import Op, Trace
from detdiag.trace.reruns import CHECKS, Reruns, check, differing_traces
from detdiag.trace.result import Effect, Source, SourceKind
from detdiag.trace.state import Name

MAX_SOURCES = 8
FREEZE = "freeze the result"
Family = tuple[str, str, int]
"""(operator, module path without block numbers, occurrence): one call in every block."""
Attempted = tuple[str, str, str, str, SourceKind, Callable[[], Frozen]]


def search(
    run: Reruns, comparison: Comparison, moved: tuple[Name, ...], whole: Distance
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
        new = differing_traces(run, total, 3)
        if new is None:
            break
        comparison = compare(*new)
    return sources, total, left


def _step(
    run: Reruns,
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
        after, k = check(run, new)
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


def _attempts(
    run: Reruns, comparison: Comparison, moved: tuple[Name, ...], families: set[Family]
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


def _moved_on(run: Reruns, frozen: Frozen, comparison: Comparison, inside: str | None) -> bool:
    """Whether the first difference now comes later in the forward, and not in ``inside``: a
    module with several sources is better frozen as one."""
    traces = differing_traces(run, frozen, 2)
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


def placebo_freezes(
    run: Reruns,
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
        after, k = check(run, keep_sites(run.model, run.call, sites))
        wall = time.monotonic() - start
        note = f"{k} of {CHECKS} runs differ"
        changed_something = after.bit_equal
        run.placebos.append(Effect(FREEZE, name, after, changed_something, len(sites), wall, note))
