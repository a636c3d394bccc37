"""Labels: equal, born, inherited, absorbed; and the first operator that is to blame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from detdiag.trace.match import ancestors, pair_ops
from detdiag.trace.oplog import Anchor, Op, Sig, Trace

Label = Literal["equal", "born", "inherited", "absorbed", "unalignable", "unmatched", "bookkeeping"]
LABELS: Final[tuple[Label, ...]] = get_args(Label)
Reason = Literal["", "operand", "external", "region", "arguments", "zone"]
Same = bool | None


@dataclass(frozen=True, slots=True)
class Labelled:
    """An operator of the second trace with its label against the first.

    ``reason`` refines ``born``: ``operand`` reads another part of an equal tensor, ``external``
    reads a tensor that no operator of this forward wrote, ``region`` has inputs that could not be
    aligned although all before them agreed, ``arguments`` has other scalars, ``zone`` reads what
    comes out of a module (``source``) that reorders tokens inside.
    """

    op: Op
    other: Op | None
    label: Label
    reason: Reason = ""
    source: str = ""
    on_path: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """Labels of every operator, in order, and of module calls by (path, call)."""

    ops: tuple[Labelled, ...]
    first: Labelled | None
    """First blamable operator, None where nothing was born on the way to the logits."""
    root: Labelled | None
    """The integer operator that ``first`` inherited from (positions, routing), if any."""
    modules: dict[tuple[str, int], Label]
    streams_differ: tuple[str, ...]
    """Module paths whose own operator sequences differ."""

    def count(self, label: Label) -> int:
        return sum(1 for o in self.ops if o.label == label)


def same(a: Sig, b: Sig) -> Same:
    """Whether two operands have the same bits; None when that cannot be told."""
    if a.digest is None or b.digest is None or a.shape != b.shape:
        return None
    return a.digest == b.digest and a.dtype == b.dtype


_REORDERS = frozenset(
    f"aten.{name}"
    for name in "sort argsort nonzero nonzero_numpy unique unique2 _unique2 histc bincount "
    "searchsorted where masked_select".split()
)
"""Integer operators whose result depends on the whole batch on purpose."""


class _Walk:
    """One pass over the second trace in order."""

    def __init__(self, a: Trace, b: Trace, opaque: frozenset[str]) -> None:
        self.a, self.b, self.opaque = a, b, opaque
        self.pairs = pair_ops(a, b)
        self.path = ancestors(b)
        self.out: list[Labelled] = []
        self.floats = ancestors(b, floating=True)
        self.zones: dict[int, str] = {}
        """Operators inside a reordering (tokens grouped by expert) by the module it began in."""
        self.taint: dict[int, bool] = {}
        """Per operator whose output could not be compared: did anything before it differ?"""

    def label(self, op: Op) -> Labelled:
        other_index = self.pairs.get(op.index)
        other = self.a.ops[other_index] if other_index is not None else None
        states, reason, source = self._inputs(op, other)
        out = self._outputs(op, other)
        on_path = op.index in self.path
        inherited = "differs" in states
        kind: Label
        if self._inside(op):
            self.taint[op.index] = inherited or "tainted" in states
            return Labelled(op, other, "unalignable", on_path=on_path)
        if not op.outputs:
            return Labelled(op, other, "inherited" if inherited else "equal", on_path=on_path)
        zone = self._zone(op)
        if out is not True and zone is not None and not inherited and "tainted" not in states:
            path = op.frame.path
            if zone and not (path == zone or path.startswith(f"{zone}.")):
                return Labelled(op, other, "born", "zone", zone, on_path)
            self.zones[op.index] = zone
            self.taint[op.index] = False
            kind = "unalignable" if op.floating else "bookkeeping"
            return Labelled(op, other, kind, on_path=on_path)
        if out is not True and not inherited and self._counts(op):
            self.zones[op.index] = op.frame.path
            self.taint[op.index] = False
            return Labelled(op, other, "bookkeeping", on_path=on_path)
        if other is None or out is None:
            self.taint[op.index] = inherited or "tainted" in states
            kind = "unmatched" if other is None else "unalignable"
            return Labelled(op, other, kind, on_path=on_path)
        if out:
            kind = "absorbed" if inherited or reason or "tainted" in states else "equal"
            return Labelled(op, other, kind, on_path=on_path)
        if inherited or "tainted" in states:
            return Labelled(op, other, "inherited", on_path=on_path)
        if not reason and "unknown" in states:
            reason = "region"
        if not reason and op.scalars != other.scalars and not op.floating:
            reason = "arguments"
        return Labelled(op, other, "born", reason, source, on_path)

    def _zone(self, op: Op) -> str | None:
        """The module whose reordering this operator reads from, if any."""
        found = (self.zones[s.producer] for s in op.inputs if s.producer in self.zones)
        return next(found, None)

    def _counts(self, op: Op) -> bool:
        """Whether the operator reduces or reorders the batch on purpose (counts, sorts, sizes)."""
        if self.b.whole or (op.index in self.floats and op.floating):
            return False
        if op.name in _REORDERS and not op.floating:
            return True
        into = any(s.batched for s in op.inputs)
        return into and not any(s.batched for s in op.outputs)

    def _inside(self, op: Op) -> bool:
        path = op.frame.path
        return any(path == p or path.startswith(f"{p}.") for p in self.opaque)

    def _inputs(self, op: Op, other: Op | None) -> tuple[set[str], Reason, str]:
        theirs = {s.slot: s for s in other.inputs} if other is not None else {}
        states: set[str] = set()
        reason: Reason = ""
        source = ""
        for sig in op.inputs:
            twin = theirs.get(sig.slot)
            verdict = same(twin, sig) if twin is not None else None
            upstream = self.out[sig.producer].label if sig.producer >= 0 else "external"
            if verdict is True:
                states.add("equal")
            elif verdict is None:
                states.add(self._unknown(sig, upstream, twin))
            elif sig.producer >= 0 and not self.b.ops[sig.producer].outputs:
                states.add("form")  # memory that nothing has written yet
            elif upstream == "external":
                reason, source = "external", sig.source
            elif upstream == "bookkeeping" or sig.producer in self.zones:
                states.add("form")
            elif upstream in ("equal", "absorbed"):
                reason = reason or "operand"
            elif upstream in ("unmatched", "unalignable"):
                states.add("differs" if self.taint.get(sig.producer) else "unknown")
            else:
                states.add("differs")
        return states, reason, source

    def _unknown(self, sig: Sig, upstream: str, twin: Sig | None) -> str:
        if other_form(sig) or upstream == "bookkeeping" or sig.producer in self.zones:
            return "form"
        if upstream in ("born", "inherited"):
            return "tainted"
        if upstream in ("unmatched", "unalignable") and self.taint.get(sig.producer):
            return "tainted"
        if upstream in ("equal", "absorbed") and twin is not None:
            return "form"
        return "unknown" if upstream != "external" else "form"

    def _outputs(self, op: Op, other: Op | None) -> Same:
        if other is None:
            return None
        verdicts = [same(x, y) for x, y in zip(other.outputs, op.outputs, strict=False)]
        known = [v for v in verdicts if v is not None]
        return None if not known else all(known)


def other_form(sig: Sig) -> bool:
    """Whether the operand is a mask (the solo run often has none)."""
    return "mask" in sig.slot or sig.dtype == "torch.bool"


def compare(a: Trace, b: Trace, *, opaque: frozenset[str] = frozenset()) -> Comparison:
    """Label every operator of ``b`` against ``a`` (the solo run, or the first of two runs).

    Modules in ``opaque`` are judged by what comes out of them: an intervention runs inside.
    """
    walk = _Walk(a, b, opaque)
    for op in b.ops:
        walk.out.append(walk.label(op))
    first, root = _first(walk.out, walk.floats)
    return Comparison(
        ops=tuple(walk.out),
        first=first,
        root=root,
        modules=_modules(a, b),
        streams_differ=_streams(a, b),
    )


def _first(ops: list[Labelled], floats: set[int]) -> tuple[Labelled | None, Labelled | None]:
    """First operator with a floating result that differs on the way to the logits; if it got
    the difference from integers, the integer operator where that began comes second."""
    for item in ops:
        if not item.on_path or not item.op.floating:
            continue
        if item.label == "born" and item.op.index in floats:
            return item, None
        if item.label == "inherited":
            root = _root(ops, item)
            if root is not None:
                return item, root
    born = next((o for o in ops if o.label == "born" and o.on_path), None)
    return born, None


def _root(ops: list[Labelled], item: Labelled) -> Labelled | None:
    todo = [s.producer for s in item.op.inputs if s.producer >= 0]
    seen: set[int] = set()
    roots = []
    while todo:
        index = todo.pop()
        if index in seen or ops[index].label in ("equal", "absorbed"):
            continue
        seen.add(index)
        if ops[index].label == "born":
            roots.append(ops[index])
        todo += [s.producer for s in ops[index].op.inputs if s.producer >= 0]
    return min(roots, key=lambda r: r.op.index) if roots else None


def _modules(a: Trace, b: Trace) -> dict[tuple[str, int], Label]:
    theirs = {x.frame: x for x in a.anchors}
    out: dict[tuple[str, int], Label] = {}
    for anchor in b.anchors:
        twin = theirs.get(anchor.frame)
        label: Label = "unmatched" if twin is None else _anchor_label(twin, anchor)
        out[tuple(anchor.frame)] = label  # type: ignore[index]
    return out


def _anchor_label(a: Anchor, b: Anchor) -> Label:
    inputs = _all_same(a.inputs, b.inputs)
    outputs = _all_same(a.outputs, b.outputs)
    if outputs is None:
        return "unalignable"
    if inputs is False:
        return "absorbed" if outputs else "inherited"
    return "equal" if outputs else "born"


def _all_same(a: tuple[Sig, ...], b: tuple[Sig, ...]) -> Same:
    theirs = {s.slot: s for s in a}
    known = [
        v
        for s in b
        if s.slot in theirs and not other_form(s) and (v := same(theirs[s.slot], s)) is not None
    ]
    return None if not known else all(known)


def _streams(a: Trace, b: Trace) -> tuple[str, ...]:
    mine: dict[tuple[str, int], list[str]] = {}
    for trace, store in ((a, {}), (b, mine)):
        for op in trace.ops:
            store.setdefault((op.frame.path, op.frame.call), []).append(op.name)
        if trace is a:
            other = store
    paths = [p for p, _ in sorted(set(mine) | set(other)) if mine.get((p, _)) != other.get((p, _))]
    return tuple(dict.fromkeys(paths))


def born_module(comparison: Comparison) -> str | None:
    """Innermost module that got equal inputs and gave another output, in running order."""
    best: str | None = None
    for (path, _), label in comparison.modules.items():
        if label == "born" and (best is None or path.startswith(f"{best}.") or best == ""):
            best = path
    return best
