"""Bits decide, floats describe: digests, ULP distances and intervals of counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import xxhash
from torch import Tensor

_INT_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def row_digests(rows: Tensor) -> tuple[str, ...]:
    """One 64-bit hex digest of the raw bytes of each ``rows[i]``, with dtype and shape in it."""
    flat = rows.detach().reshape(rows.shape[0], -1).contiguous().cpu()
    key = f"{rows.dtype}{tuple(rows.shape[1:])}".encode()
    if flat.numel() == 0:
        return tuple(xxhash.xxh3_64_hexdigest(key) for _ in range(flat.shape[0]))
    raw = flat.view(torch.uint8).numpy()
    seed = xxhash.xxh32_intdigest(key)
    return tuple(xxhash.xxh3_64_hexdigest(raw[i].tobytes(), seed=seed) for i in range(len(raw)))


def bits(values: Tensor) -> Tensor:
    """``values`` as integers of the same width (so that NaN payloads and -0.0 are told apart)."""
    if not values.dtype.is_floating_point:
        return values
    return values.contiguous().view(_INT_OF_SIZE[values.element_size()])


def bit_equal(a: Tensor, b: Tensor) -> bool:
    """Same dtype, shape and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(bits(a), bits(b)))


def differing_rows(a: Tensor, b: Tensor) -> list[int]:
    """Indices on the first axis where any bit differs (all of them if the shapes differ)."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return list(range(min(a.shape[0], b.shape[0])))
    if a.numel() == 0:
        return []
    unequal = (bits(a) != bits(b)).reshape(a.shape[0], -1).any(-1)
    return [int(i) for i in unequal.nonzero().flatten()]


def ulp_of(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Spacing of ``dtype`` at the magnitude of ``values``: float64, same shape.

    Zero and subnormal values get the spacing of the smallest normal number.
    """
    info = torch.finfo(dtype)
    size = values.double().abs().clamp(min=info.tiny)
    _, exponent = torch.frexp(size)
    return torch.ldexp(torch.full_like(size, float(info.eps)), exponent - 1)


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two logit blocks (positions, vocabulary) are apart.

    ``max_ulp`` is the largest difference over the spacing of the dtype at the larger operand.
    ``flips`` counts positions whose arg-max differs; ``per_position_abs`` has one entry each.
    """

    bit_equal: bool
    max_abs: float
    max_ulp: float
    flips: int
    positions: int
    per_position_abs: tuple[float, ...]
    flipped: tuple[int, ...]


def difference(a: Tensor, b: Tensor, dtype: torch.dtype | None = None) -> Difference:
    """Describe two equally shaped blocks; ``dtype`` is the one they were computed in."""
    dtype = dtype or a.dtype
    n = a.shape[0]
    if bit_equal(a, b):
        return Difference(True, 0.0, 0.0, 0, n, (0.0,) * n, ())
    wide_a, wide_b = a.double(), b.double()
    delta = (wide_a - wide_b).abs().nan_to_num(nan=math.inf)
    ulp = ulp_of(torch.maximum(wide_a.abs(), wide_b.abs()).nan_to_num(), dtype)
    flipped = (a.argmax(-1) != b.argmax(-1)).nonzero().flatten()
    return Difference(
        bit_equal=False,
        max_abs=float(delta.max()),
        max_ulp=float((delta / ulp).max()),
        flips=int(flipped.numel()),
        positions=n,
        per_position_abs=tuple(float(x) for x in delta.amax(-1)),
        flipped=tuple(int(i) for i in flipped),
    )


def interval95(k: int, n: int) -> tuple[float, float]:
    """95 % interval of k of n: Wilson, and Clopper-Pearson at 0 and at n of n."""
    if n == 0:
        return (0.0, 1.0)
    if k == 0:
        return (0.0, 1.0 - 0.025 ** (1.0 / n))
    if k == n:
        return (0.025 ** (1.0 / n), 1.0)
    z = 1.959963984540054
    p = k / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return (middle - half, middle + half)
