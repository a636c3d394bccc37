"""Rounding and ULP distances of the float formats that routers score in, without torch."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final

DTYPES_BY_WIDTH: Final = ("bfloat16", "float16", "float32", "float64")
"""Known formats, fewest significand bits first (8, 11, 24, 53)."""


def normal_dtype(name: str | None) -> str | None:
    """``torch.bfloat16``, ``bf16``, ``fp32`` ... to the plain spelling; None if unknown."""
    if name is None:
        return None
    plain = name.removeprefix("torch.").lower()
    short = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "f16": "float16"}
    short |= {"fp32": "float32", "f32": "float32", "float": "float32"}
    short |= {"fp64": "float64", "f64": "float64", "double": "float64"}
    plain = short.get(plain, plain)
    return plain if plain in DTYPES_BY_WIDTH else None


def round_to(value: float, dtype: str) -> float:
    """``value`` rounded to the nearest number of ``dtype``, ties to even."""
    if dtype == "float64" or not math.isfinite(value):
        return value
    try:
        if dtype == "float16":
            return float(struct.unpack("<e", struct.pack("<e", value))[0])
        single = float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
    if dtype == "float32":
        return single
    bits = int(struct.unpack("<I", struct.pack("<f", single))[0])
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def ordinal(value: float, dtype: str) -> int:
    """Place of ``value`` on the number line of ``dtype``: neighbours differ by one."""
    value = round_to(value, dtype)
    if dtype == "float64":
        bits, width = struct.unpack("<Q", struct.pack("<d", value))[0], 64
    elif dtype == "float16":
        bits, width = struct.unpack("<H", struct.pack("<e", value))[0], 16
    else:
        bits, width = struct.unpack("<I", struct.pack("<f", value))[0], 32
    if dtype == "bfloat16":
        bits, width = bits >> 16, 16
    sign = 1 << (width - 1)
    return -(bits - sign) if bits & sign else bits


def ulp_distance(a: float, b: float, dtype: str) -> int | None:
    """Steps of ``dtype`` between ``a`` and ``b``; None where either is not finite."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return None
    return abs(ordinal(a, dtype) - ordinal(b, dtype))


def same_bits(a: Sequence[float], b: Sequence[float]) -> bool:
    """Equal to the last bit (0.0 and -0.0 differ, a NaN equals itself)."""
    return len(a) == len(b) and struct.pack(f"<{len(a)}d", *a) == struct.pack(f"<{len(b)}d", *b)


def narrowest(values: Sequence[float], declared: str | None) -> str:
    """The narrowest format that holds every value, never wider than ``declared``.

    A log may say float32 about scores that were cast up after the router had rounded them.
    """
    declared = normal_dtype(declared) or "float64"
    for dtype in DTYPES_BY_WIDTH[: DTYPES_BY_WIDTH.index(declared)]:
        if all(round_to(v, dtype) == v for v in values if math.isfinite(v)):
            return dtype
    return declared
