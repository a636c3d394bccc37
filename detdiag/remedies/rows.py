"""Batch-invariant inference for any model: operators, and where needed modules, row by row."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any, Final

import torch
from torch import nn

from detdiag.moe.discover import find_routers, may_have_experts
from detdiag.trace.calls import Layout, eager_inference
from detdiag.trace.modules import Frame, tracked
from detdiag.trace.rows import ROW_OPS, RowStats, RowWise, _layout_of, constants_of
from detdiag.trace.splitting import module_rows

LEAVES: Final = "leaves"


@contextlib.contextmanager
def row_invariant(
    model: nn.Module,
    *,
    ops: Collection[str] = ROW_OPS,
    modules: Collection[str] | str | None = None,
    stats: RowStats | None = None,
) -> Iterator[RowStats]:
    """Batch-invariant inference: each row gets the bits that it gets alone, on any device.

    While the context is open, forwards and ``generate`` of ``model`` run products, attention and
    reductions (``ops``) one row at a time and on that row's real tokens only; elementwise
    operators stay batched. Blocks of experts run whole, row by row, since operators inside them
    see tokens of all rows at once. ``modules`` names further modules (paths) whose own code looks
    at the batch, such as a custom kernel; ``"leaves"`` takes every module without children that
    has weights.

    Guaranteed, on one machine with one setting of threads and backends: the logits of a row's real
    tokens do not depend on the number of rows, the row's place, its neighbours, or left or right
    padding that the attention mask marks (with position ids that count real tokens only; right
    padding needs none), in prefill and in each decode step over a growing cache. Not
    guaranteed: equality of a prefill with a decode step, or of other lengths of one row
    (chunked prefill, prefix reuse); padded rows over a preallocated (static) cache; operators
    that ``stats.whole`` counts as not split (sums over a mask are harmless); a module that
    looks at the whole batch in its own code and is not in ``modules``.

    No gradients, no compilation, no CUDA graphs. The time is about that of the rows one after
    another. Everything is set back on exit. Yields counts of what ran row by row.
    """
    stats = stats or RowStats()
    if torch.is_grad_enabled() and any(p.requires_grad for p in model.parameters()):
        with torch.no_grad(), row_invariant(model, ops=ops, modules=modules, stats=stats) as s:
            yield s
        return
    current: list[Layout | None] = [None]

    def enter(frame: Frame, arguments: Any) -> None:
        if frame.path == "":
            current[0] = _layout_of(*arguments)

    paths = _paths(model, modules)
    with (
        eager_inference(),
        tracked(model, enter=enter) as stack,
        _modules_by_row(model, paths, current, stats),
        RowWise(lambda name, _: name in ops, lambda: current[0], stack, stats, constants_of(model)),
    ):
        yield stats


def _paths(model: nn.Module, modules: Collection[str] | str | None) -> frozenset[str]:
    bare = getattr(model, "_orig_mod", model)
    found = set(expert_blocks(bare))
    if modules == LEAVES:
        found |= {
            path
            for path, module in bare.named_modules()
            if path
            and next(module.children(), None) is None
            and next(module.parameters(recurse=False), None) is not None
            and not isinstance(module, nn.Embedding)
        }
    elif modules is not None:
        found |= {modules} if isinstance(modules, str) else set(modules)
        for path in found:
            bare.get_submodule(path)
    return frozenset(_outermost(found))


def _outermost(paths: Collection[str]) -> set[str]:
    """Paths that lie in no other of ``paths``."""
    return {p for p in paths if not any(p != q and p.startswith(f"{q}.") for q in paths)}


def expert_blocks(model: nn.Module) -> set[str]:
    """Paths of blocks that hold a router and its experts: by the usual names, else by structure
    (which costs one forward on 26 tokens)."""
    found = set()
    for path, _ in model.named_modules():
        parent, _, leaf = path.rpartition(".")
        if "expert" in leaf.lower() and "shared" not in leaf.lower() and parent:
            found.add(parent)
    found = _outermost({p for p in found if not p.rpartition(".")[2].isdigit()})
    if not found and may_have_experts(model):
        with torch.random.fork_rng():
            found = _outermost({r.block_path for r in find_routers(model)})
    return found


@contextlib.contextmanager
def _modules_by_row(
    model: nn.Module, paths: frozenset[str], current: list[Layout | None], stats: RowStats
) -> Iterator[None]:
    bare = getattr(model, "_orig_mod", model)
    kept: list[tuple[nn.Module, Any]] = []
    for path in sorted(paths):
        module = bare.get_submodule(path)
        kept.append((module, vars(module).get("forward")))
        module.forward = _rowed(module.forward, path, current, stats)
    try:
        yield
    finally:
        for module, forward in kept:
            if forward is None:
                vars(module).pop("forward", None)
            else:
                module.forward = forward


def _rowed(forward: Any, path: str, current: list[Layout | None], stats: RowStats) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        layout = current[0]
        if layout is None or layout.n < 2:
            return forward(*args, **kwargs)
        current[0] = None  # inside, one row is all there is
        try:
            out = module_rows(forward, layout, args, kwargs)
            if out is None:
                stats.whole[path] += 1
                return forward(*args, **kwargs)
        finally:
            current[0] = layout
        stats.calls[path] += 1
        return out

    return run
