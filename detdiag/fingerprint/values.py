"""How far the values of two tensors are apart: elements, ULPs, largest absolute difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from detdiag.fingerprint.tensors import TensorRef
from detdiag.fingerprint.weights import read_headers

_BITS: Final[dict[str, str]] = {"F16": "u2", "BF16": "u2", "F32": "u4", "F64": "u8"}
_SLICE: Final = 1 << 22
"""Elements compared at a time."""


@dataclass(frozen=True, slots=True)
class ValueDiff:
    """``max_ulp`` counts representable values between the two, None for integer formats."""

    name: str
    dtype: str
    elements: int
    changed: int
    max_ulp: int | None
    max_abs: float | None

    def describe(self) -> str:
        """``model.norm.weight: 1 of 64 elements, at most 1 ULP``."""
        size = "" if self.max_ulp is None else f", at most {self.max_ulp} ULP"
        return f"{self.name}: {self.changed} of {self.elements} elements{size}"

    def to_dict(self) -> dict[str, Any]:
        keys = ("name", "dtype", "elements", "changed", "max_ulp", "max_abs")
        return {key: getattr(self, key) for key in keys}


def tensor_places(model: Path) -> dict[str, TensorRef]:
    """Where each tensor of a checkpoint lies, by name."""
    headers, _ = read_headers(model)
    return {tensor.name: tensor for header in headers for tensor in header.tensors}


def compare_values(
    a: Mapping[str, TensorRef], b: Mapping[str, TensorRef], names: list[str]
) -> list[ValueDiff]:
    """Compare tensors by name; those of another dtype or shape are left out."""
    out = []
    for name in names:
        left, right = a.get(name), b.get(name)
        if left is None or right is None:
            continue
        if (left.dtype, left.shape) == (right.dtype, right.shape) and left.strides is right.strides:
            out.append(_compare(left, right))
    return out


def _compare(left: TensorRef, right: TensorRef) -> ValueDiff:
    import numpy as np

    layout = _BITS.get(left.dtype, "u1")
    items = left.size // np.dtype(layout).itemsize
    changed, max_ulp, max_abs = 0, 0, 0.0
    if items:
        raw = [np.memmap(r.file, "u1", "r", r.start, (r.size,)) for r in (left, right)]
        for start in range(0, items, _SLICE):
            width = np.dtype(layout).itemsize
            piece = [r[start * width : (start + _SLICE) * width].view(layout) for r in raw]
            where = np.flatnonzero(piece[0] != piece[1])
            changed += len(where)
            if len(where) and left.dtype in _BITS:
                one, two = (p[where] for p in piece)
                max_ulp = max(max_ulp, _max_ulp(one, two, layout))
                floats = [_floats(p, left.dtype) for p in (one, two)]
                with np.errstate(all="ignore"):
                    gap = np.abs(floats[0] - floats[1])
                max_abs = max(max_abs, float(np.nanmax(gap)) if not np.isnan(gap).all() else 0.0)
    if left.dtype not in _BITS:
        return ValueDiff(left.name, left.dtype, items, changed, None, None)
    return ValueDiff(left.name, left.dtype, items, changed, max_ulp, max_abs)


def _max_ulp(a: Any, b: Any, layout: str) -> int:
    """Sign-magnitude bits laid on one line of integers, so that neighbours differ by one."""
    import numpy as np

    width = np.dtype(layout).itemsize * 8
    top = 1 << (width - 1)
    if width == 64:  # Python integers: the difference of two int64 can overflow
        exact = [[-(v & (top - 1)) if v & top else v for v in side.tolist()] for side in (a, b)]
        return max(abs(x - y) for x, y in zip(*exact, strict=True))
    ints = [side.astype(np.int64) for side in (a, b)]
    ordered = [np.where(side & top, -(side & (top - 1)), side) for side in ints]
    return int(np.abs(ordered[0] - ordered[1]).max())


def _floats(bits: Any, dtype: str) -> Any:
    import numpy as np

    if dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    name = {"F16": "f2", "F32": "f4", "F64": "f8"}[dtype]
    return bits.view(name).astype(np.float64)
