"""Interventions on the batched run: what to do to one source, as a context around the forward."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from detdiag.trace.align import Cut, cut_like
from detdiag.trace.calls import ForwardCall, Layout
from detdiag.trace.graft import Site, Store, captured, grafted
from detdiag.trace.match import pair_ops
from detdiag.trace.modules import Frame, ModuleStack, tracked
from detdiag.trace.oplog import Op, Trace
from detdiag.trace.rows import RowStats, row_by_row
from detdiag.trace.splitting import module_rows


@dataclass(frozen=True)
class Fix:
    """A set of interventions that act together: operators and module classes that run row by row,
    results grafted from the solo run, and whether positions are counted from the mask."""

    ops: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    """Paths of modules whose forward runs row by row."""
    grafts: dict[Site, list[Tensor]] = field(default_factory=dict)
    cuts: dict[Site, list[Cut]] = field(default_factory=dict)
    positions: bool = False
    keep_mask: frozenset[int] = frozenset()
    """Model steps in which the solo run gives attention a mask."""

    def __or__(self, other: Fix) -> Fix:
        return Fix(
            self.ops | other.ops,
            self.modules | other.modules,
            {**self.grafts, **other.grafts},
            {**self.cuts, **other.cuts},
            self.positions or other.positions,
            self.keep_mask | other.keep_mask,
        )

    def call(self, call: ForwardCall) -> ForwardCall:
        return with_positions(call) if self.positions else call


@dataclass
class Counts:
    """Calls that an intervention touched."""

    rows: RowStats = field(default_factory=RowStats)
    modules: Counter[str] = field(default_factory=Counter)
    grafts: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return self.rows.calls.total() + self.modules.total() + self.grafts.total()


@contextlib.contextmanager
def applied(model: nn.Module, call: ForwardCall, fix: Fix, counts: Counts) -> Iterator[None]:
    """Open all interventions of ``fix`` (row-by-row ones below grafts)."""
    with contextlib.ExitStack() as stack:
        if fix.ops:
            wanted = fix.ops
            stack.enter_context(
                row_by_row(
                    model,
                    call,
                    lambda name, _: name in wanted,
                    counts.rows,
                    keep_mask=fix.keep_mask,
                )
            )
        if fix.modules:
            stack.enter_context(_modules_by_row(model, call, fix.modules, counts.modules))
        if fix.grafts:
            stack.enter_context(grafted(model, fix.grafts, fix.cuts, counts.grafts))
        yield


def run_with(model: nn.Module, call: ForwardCall, fix: Fix, counts: Counts) -> Tensor:
    """Logits of ``call`` under the interventions."""
    call = fix.call(call)
    with applied(model, call, fix, counts):
        return call.run(model)


@contextlib.contextmanager
def _modules_by_row(
    model: nn.Module, call: ForwardCall, paths: frozenset[str], counts: Counter[str]
) -> Iterator[None]:
    layouts = call.layouts()
    bare = getattr(model, "_orig_mod", model)
    found = {path: module for path, module in bare.named_modules() if path in paths}
    busy: list[str] = []
    with tracked(model) as stack:
        kept = {path: vars(m).get("forward") for path, m in found.items()}
        for path, module in found.items():
            module.forward = _rowed(module.forward, path, stack, layouts, counts, busy)
        try:
            yield
        finally:
            for path, module in found.items():
                if kept[path] is None:
                    vars(module).pop("forward", None)
                else:
                    module.forward = kept[path]


def _rowed(
    forward: Any,
    path: str,
    stack: ModuleStack,
    layouts: tuple[Layout, ...],
    counts: Counter[str],
    busy: list[str],
) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        layout = layouts[min(stack.step, len(layouts) - 1)]
        if busy or not layout.divides:
            return forward(*args, **kwargs)
        busy.append(path)
        try:
            out = module_rows(forward, layout, args, kwargs)
        finally:
            busy.pop()
        if out is None:
            return forward(*args, **kwargs)
        counts[path] += 1
        return out

    return run


def with_positions(call: ForwardCall) -> ForwardCall:
    """The same call with positions counted from the mask, as ``generate`` counts them."""
    mask = call.kwargs.get("attention_mask")
    if not isinstance(mask, Tensor):
        mask = torch.ones(call.lead.shape[:2], dtype=torch.int64, device=call.lead.device)
    positions = (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -call.lead.shape[1] :]
    return replace(call, kwargs={**call.kwargs, "position_ids": positions})


def graft_fix(
    model: nn.Module,
    solo: ForwardCall,
    solo_trace: Trace,
    batch_trace: Trace,
    ops: list[Op],
    row: int,
) -> Fix | None:
    """Graft the results of ``ops`` (of the batched trace) from the solo run; None if unaligned."""
    pairs = pair_ops(solo_trace, batch_trace)
    twins = {op.index: solo_trace.ops[pairs[op.index]] for op in ops if op.index in pairs}
    sites = {site_of(twins[op.index]): op for op in ops if op.index in twins}
    if not sites:
        return None
    store = Store()
    names = frozenset(s[0] for s in sites)
    with captured(model, lambda site: site in sites, names, store):
        solo.run(model)
    grafts: dict[Site, list[Tensor]] = {}
    cuts: dict[Site, list[Cut]] = {}
    for site, tensors in store.values.items():
        op = sites[site]
        picks = output_cuts(op, twins[op.index], batch_trace, solo_trace, row)
        if picks is not None:
            grafts[site_of(op)] = tensors[: len(picks)]
            cuts[site_of(op)] = picks
    return Fix(grafts=grafts, cuts=cuts) if grafts else None


def output_cuts(op: Op, twin: Op, batch: Trace, alone: Trace, row: int) -> list[Cut] | None:
    """Where the row under test sits in each result of ``op``."""
    out = []
    for mine, other in zip(op.outputs, twin.outputs, strict=False):
        step = min(step_of(op.frame, batch), len(batch.layouts) - 1)
        layouts = batch.layouts[step], alone.layouts[min(step, len(alone.layouts) - 1)]
        cut = cut_like(mine.raw, other.raw, layouts[0], layouts[1], row)
        if cut is None:
            return None
        out.append(cut)
    return out or None


def step_of(frame: Frame, trace: Trace) -> int:
    """Model step of a module call (most modules run once a step, as the root does)."""
    return frame.call if len(trace.layouts) > 1 else 0


def masked_steps(solo: Trace) -> frozenset[int]:
    """Model steps in which an attention operator of the trace takes a mask."""
    return frozenset(
        step_of(op.frame, solo) for op in solo.ops if any(s.slot == "attn_mask" for s in op.inputs)
    )


def site_of(op: Op) -> Site:
    return (op.name, op.frame, op.occurrence)
