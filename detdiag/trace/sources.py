"""From the first differing operator to what to try on it, and what kind of source it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import nn

from detdiag.trace.fixes import Fix
from detdiag.trace.labels import Comparison, Labelled
from detdiag.trace.oplog import Op, Trace
from detdiag.trace.result import SourceKind

_POSITIONAL = ("rotary", "rope", "pos", "wpe")


@dataclass(frozen=True)
class Attempt:
    """One intervention to try: ``fix`` itself, or results of ``graft`` from the solo run."""

    method: str
    target: str
    kind: SourceKind
    fix: Fix | None = None
    graft: list[Op] = field(default_factory=list)
    module: str | None = None


def candidates(
    model: nn.Module, trace: Trace, comparison: Comparison, done: Fix
) -> Iterator[Attempt]:
    """Interventions on the first difference, gentlest and most telling first."""
    first, root = comparison.first, comparison.root
    assert first is not None
    if positional(first, root):
        item = root or first
        if not done.positions:
            text = "position_ids from the mask"
            yield Attempt(text, "the call", "positions", Fix(positions=True))
        yield Attempt("graft solo into batch", item.op.name, "positions", graft=[item.op])
        return
    kind = _kind(trace, comparison)
    item = root or first
    if first.reason == "zone":
        for path, group in _module_groups(model, first.source, done):
            label = f"{path} and its like" if len(group) > 1 else path
            yield Attempt(
                "module row by row", label, kind, Fix(modules=frozenset(group)), module=path
            )
        yield Attempt("graft solo into batch", first.op.name, kind, graft=[first.op])
        return
    if first.op.name not in done.ops:
        name = first.op.name
        yield Attempt("row by row", name, "numerics", Fix(ops=frozenset([name])))
    for path, group in _module_groups(model, item.op.frame.path, done):
        label = f"{path} and its like" if len(group) > 1 else path
        fix = Fix(modules=frozenset(group))
        yield Attempt("module row by row", label, kind, fix, module=path)
    yield Attempt("graft solo into batch", item.op.name, kind, graft=[item.op])
    if first is not item:
        yield Attempt("graft solo into batch", first.op.name, kind, graft=[first.op])


def positional(first: Labelled, root: Labelled | None) -> bool:
    """Whether the difference comes in through token positions."""
    sources = [s.source for s in first.op.inputs] + (
        [s.source for s in root.op.inputs] if root else []
    )
    if any(s == "input:position_ids" for s in sources) and (root or first.reason == "external"):
        return True
    if root is None or root.op.floating:
        return False
    path = first.op.frame.path.rsplit(".", 1)[-1].lower()
    if any(word in path for word in _POSITIONAL):
        return True
    return first.op.name in ("aten.cos", "aten.sin") or (
        root.op.name in ("aten.arange", "aten.cumsum") and first.op.name == "aten.embedding"
    )


def _module_groups(model: nn.Module, path: str, done: Fix) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The module at ``path`` with the others of its class, then the module around it, below the
    block level."""
    modules = dict(getattr(model, "_orig_mod", model).named_modules())
    clean = {".".join(p for p in k.split(".") if p != "_orig_mod"): v for k, v in modules.items()}
    while path and path in clean and not path.rsplit(".", 1)[-1].isdigit():
        module = clean[path]
        if not any(isinstance(m, nn.ModuleList) and len(m) for m in module.children()) or (
            "." in path and "expert" not in path and not _has_blocks(path)
        ):
            kind = type(module)
            group = tuple(k for k, m in clean.items() if type(m) is kind)
            if path not in done.modules:
                yield path, group
        path = path.rpartition(".")[0]


def _has_blocks(path: str) -> bool:
    return not any(part.isdigit() for part in path.split("."))


def _kind(trace: Trace, comparison: Comparison) -> SourceKind:
    first, root = comparison.first, comparison.root
    assert first is not None
    if root is not None:
        return "routing" if _decides(comparison, root) else "numerics"
    if first.reason == "zone":
        return "numerics"
    if first.reason == "external":
        return "state"
    op = first.op
    if any(s.batched for s in op.inputs) and not any(s.batched for s in op.outputs):
        return "shared_value"
    path = op.frame.path
    if any(p == path or p.startswith(f"{path}.") for p in comparison.streams_differ if p):
        return "branch"
    if first.reason == "region" and trace.coverage.hidden:
        return "hidden"
    return "numerics"


def locate(trace: Trace, comparison: Comparison, attempt: Attempt) -> tuple[str, str, SourceKind]:
    """(operator, module, kind) to name for an intervention that worked."""
    item = comparison.root or comparison.first
    if attempt.kind == "numerics" or (attempt.graft and attempt.graft[0].floating):
        item = comparison.first
    assert item is not None
    if item.reason == "zone":
        inner = _heaviest(comparison, item.source)
        return (
            (inner.name, inner.frame.path, "numerics")
            if inner
            else (item.op.name, item.source, "numerics")
        )
    if attempt.kind in ("branch", "hidden") and attempt.module is not None:
        odd = _first_unmatched(comparison, item.op.frame.path)
        if odd is not None:
            return odd.name, odd.frame.path, attempt.kind
    return item.op.name, item.op.frame.path, attempt.kind


def _decides(comparison: Comparison, root: Labelled) -> bool:
    """Whether a yes-or-no value or an expert choice of the row's own tokens came out other
    (positions in a queue alone may differ without any effect)."""
    path = root.op.frame.path
    return any(
        o.label in ("born", "inherited")
        and not o.op.floating
        and (o.op.frame.path == path or o.op.frame.path.startswith(f"{path}."))
        and (o.op.name == "aten.topk" or any(s.dtype == "torch.bool" for s in o.op.outputs))
        for o in comparison.ops
    )


def _heaviest(comparison: Comparison, path: str) -> Op | None:
    """The first matrix product inside a reordering module, else its first floating operator."""
    inside = [
        o.op
        for o in comparison.ops
        if o.label == "unalignable" and o.op.floating and o.op.frame.path.startswith(path)
    ]
    products = [op for op in inside if re.search(r"mm|linear|matmul", op.name)]
    return next(iter(products or inside), None)


def has_experts(model: nn.Module, path: str) -> bool:
    """Whether the module at ``path``, or one around it inside its block, routes to experts."""
    modules = dict(getattr(model, "_orig_mod", model).named_modules())
    while path and not path.rsplit(".", 1)[-1].isdigit():
        words = [path.rsplit(".", 1)[-1], type(modules.get(path)).__name__]
        words += [n for n, _ in modules[path].named_children()] if path in modules else []
        if any(w in word.lower() for word in words for w in ("expert", "router", "moe")):
            return True
        path = path.rpartition(".")[0]
    return False


def _first_unmatched(comparison: Comparison, path: str) -> Op | None:
    for item in comparison.ops:
        inside = item.op.frame.path == path or item.op.frame.path.startswith(f"{path}.")
        if inside and item.label == "unmatched" and item.on_path and item.op.floating:
            return item.op
    return None
