"""Pair the operators of two traces: module calls are the anchors, sequences inside them."""

from __future__ import annotations

from collections import defaultdict
from difflib import SequenceMatcher

from detdiag.trace.modules import Frame
from detdiag.trace.oplog import Op, Trace

_FLOATING = frozenset(
    f"torch.{name}"
    for name in "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 qint8 quint8".split()
)


def pair_ops(a: Trace, b: Trace) -> dict[int, int]:
    """Map operator indices of ``b`` to those of ``a``; what has no counterpart is left out.

    Two streams of other length (mask or none, repeated keys, another branch) never fail: the
    longest common subsequences of operator names are paired within each module call.
    """
    ours, theirs = _by_frame(b), _by_frame(a)
    pairs: dict[int, int] = {}
    for frame, ops in ours.items():
        other = theirs.get(frame, [])
        if [o.name for o in ops] == [o.name for o in other]:
            pairs.update((x.index, y.index) for x, y in zip(ops, other, strict=True))
        else:
            pairs.update(_common(ops, other))
    return pairs


def _by_frame(trace: Trace) -> dict[Frame, list[Op]]:
    out: dict[Frame, list[Op]] = defaultdict(list)
    for op in trace.ops:
        out[op.frame].append(op)
    return out


def _common(ops: list[Op], other: list[Op]) -> dict[int, int]:
    matcher = SequenceMatcher(None, [_word(o) for o in ops], [_word(o) for o in other], False)
    out: dict[int, int] = {}
    for block in matcher.get_matching_blocks():
        for k in range(block.size):
            out[ops[block.a + k].index] = other[block.b + k].index
    return out


def _word(op: Op) -> tuple[str, tuple[str, ...]]:
    return op.name, tuple(s.dtype for s in op.outputs)


def ancestors(trace: Trace, *, floating: bool = False) -> set[int]:
    """Operators whose results flow into the logits through tensors (``floating``: through
    floating-point tensors only, so that counts and offsets drop out).

    Values read by Python (a mask sum that decides a branch, sizes) are not part of it, so
    whole-batch bookkeeping drops out here.
    """
    todo = [trace.output] if trace.output >= 0 else []
    seen: set[int] = set()
    while todo:
        index = todo.pop()
        if index in seen:
            continue
        seen.add(index)
        todo += [
            s.producer
            for s in trace.ops[index].inputs
            if s.producer >= 0 and (not floating or s.dtype in _FLOATING)
        ]
    return seen
