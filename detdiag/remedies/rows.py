"""Batch-invariant inference for any model: operators, and where needed modules, row by row."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from detdiag.moe.discover import find_routers, may_have_experts
from detdiag.trace.calls import Layout, eager_inference
from detdiag.trace.modules import Frame, tracked
from detdiag.trace.rows import ROW_OPS, RowStats, RowWise, constants_of, layout_of
from detdiag.trace.splitting import Split, cut_row, module_split

LEAVES: Final = "leaves"
ELEMENTWISE: Final = frozenset(
    "aten.silu aten.sigmoid aten.gelu aten.tanh aten.exp aten.softplus aten.erf aten.log "
    "aten.cos aten.sin aten.mish aten.log1p aten.exp2 aten.elu".split()
)
"""Functions whose last elements a CPU computes by another routine than whole vectors: which ones
those are depends on the number of elements in the call and on the threads that share it."""
INVARIANT_OPS: Final = ROW_OPS | ELEMENTWISE


@contextlib.contextmanager
def row_invariant(
    model: nn.Module,
    *,
    ops: Collection[str] = INVARIANT_OPS,
    modules: Collection[str] | str | None = None,
    stats: RowStats | None = None,
) -> Iterator[RowStats]:
    """Batch-invariant inference: each row gets the bits that it gets alone, on any device.

    While the context is open, forwards and ``generate`` of ``model`` run products, attention,
    reductions and functions such as ``silu`` (``ops``) one row at a time and on that row's real
    tokens only; sums, products and moves of elements stay batched. Blocks of experts run whole,
    row by row, since operators inside them see tokens of all rows at once. ``modules`` names
    further modules (paths) whose own code looks at the batch, such as a custom kernel; ``"leaves"``
    takes every module without children that has weights.

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
            current[0] = layout_of(*arguments)

    paths = _paths(model, modules)
    with (
        eager_inference(),
        tracked(model, enter=enter) as stack,
        _modules_by_row(model, paths, current, stats),
        _Rows(lambda name, _: name in ops, lambda: current[0], stack, stats, constants_of(model)),
    ):
        yield stats


_SCORES: Final = frozenset({"aten.logsumexp", "aten.log_softmax"})
"""Reductions over keys that attention with a gate or a sink may use beside softmax."""
_SOFTMAX: Final = frozenset({"aten.softmax", "aten._softmax"})


class _Rows(RowWise):
    """Splits functions along any token axis, and knows attention sinks: one more column behind
    the keys, which every row keeps."""

    def _split(self, op: str, name: str, t: Tensor, layout: Layout) -> Split:
        split = super()._split(op, name, t, layout)
        scores = op in _SCORES and t.dim() == 4 and tuple(t.shape[2:]) == (layout.length, layout.kv)
        if scores and split.kind == "batch":
            return Split("batch", ((2, False), (3, True)))
        if op not in ELEMENTWISE or split.kind not in ("batch", "one") or split.axes:
            return split
        for keys, size in ((False, layout.length), (True, layout.kv)):
            axis = next((i for i in range(1, t.dim()) if t.shape[i] == size > 1), None)
            if axis is not None:
                return Split(split.kind, ((axis, keys),))
        return split

    def _rows(
        self, func: Any, name: str, arguments: tuple[str, ...], args: Any, kwargs: Any
    ) -> Any:
        layout = self.layout()
        width = args[0].shape[-1] if args and isinstance(args[0], Tensor) and args[0].dim() else 0
        if name not in _SOFTMAX or layout is None or width != layout.kv + 1:
            return super()._rows(func, name, arguments, args, kwargs)
        sunk = replace(
            layout, kv=width, kv_real=tuple((*real, width - 1) for real in layout.kv_real)
        )
        before, self.layout = self.layout, lambda: sunk
        try:
            return super()._rows(func, name, arguments, args, kwargs)
        finally:
            self.layout = before


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
            found.add(path if parent.rpartition(".")[2].isdigit() else parent)
    found = _outermost(found)
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
        if layout is None or not layout.divides:
            return forward(*args, **kwargs)
        out = None
        current[0] = None  # inside, one row is all there is
        try:
            if kwargs.get("past_key_values") is None:
                with contextlib.suppress(RuntimeError, IndexError):  # shapes that do not split
                    out = module_rows(forward, layout, args, kwargs)
        finally:
            current[0] = layout
        if out is None:
            stats.whole[path] += 1
            return forward(*args, **kwargs)
        stats.calls[path] += 1
        return out

    return run


def module_rows(forward: Any, layout: Layout, args: Any, kwargs: Any) -> Any:
    """Call ``forward`` once a row with that row's real tokens and join what it returns (tensors,
    tuples, None); None where arguments or results do not split by rows."""
    values = {**dict(enumerate(args)), **kwargs}
    splits = {k: module_split(v, layout) for k, v in values.items() if isinstance(v, Tensor)}
    if all(split.kind == "shared" for split in splits.values()):
        return None
    parts = []
    for row in range(layout.n):
        cut = {
            k: cut_row(v, splits[k], layout, row) if k in splits else v for k, v in values.items()
        }
        named = {k: v for k, v in cut.items() if isinstance(k, str)}
        parts.append(forward(*(cut[i] for i in range(len(args))), **named))
    return _joined(parts, layout)


def _joined(parts: list[Any], layout: Layout) -> Any:
    first = parts[0]
    if isinstance(first, (tuple, list)):
        columns = [_joined(list(c), layout) for c in zip(*parts, strict=True)]
        given = zip(columns, first, strict=True)
        return None if any(c is None and f is not None for c, f in given) else type(first)(columns)
    if not isinstance(first, Tensor):
        return first
    sizes = [len(real) for real in layout.real]
    if first.dim() == 0:
        return first
    if all(p.shape[0] == 1 for p in parts):
        if first.dim() > 1 and [p.shape[1] for p in parts] == sizes:
            return _spread([p[0] for p in parts], layout)
        return torch.cat(parts) if len({p.shape for p in parts}) == 1 else None
    if [p.shape[0] for p in parts] == sizes:
        return _spread(parts, layout).flatten(0, 1)
    return None


def _spread(parts: list[Tensor], layout: Layout) -> Tensor:
    """(tokens, ...) of each row to (rows, length, ...); zeros at padding."""
    whole = parts[0].new_zeros(layout.n, layout.length, *parts[0].shape[1:])
    for row, part in enumerate(parts):
        whole[row, list(layout.real[row])] = part
    return whole
