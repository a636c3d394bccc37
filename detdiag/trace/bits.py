"""Bits of tensors: order-aware 64-bit digests, bit equality and distance in ULPs.

An XOR over elements cancels equal rows and an L1 sum is blind to sign and order, so neither is
used. Digests read raw bytes, in row-major order of the logical elements.
"""

from __future__ import annotations

import ctypes
import hashlib
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _blake(data: Any) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _fastest() -> Callable[[Any], int]:
    """xxHash where it is installed; BLAKE2 is slower and as good."""
    try:
        from xxhash import xxh3_64_intdigest
    except ImportError:
        return _blake
    return xxh3_64_intdigest


_digest_buffer = _fastest()


_MASK = (1 << 64) - 1
_INTS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MANTISSA = {torch.float64: 52, torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}
_CHAR: Callable[[int], Any] = ctypes.c_char.__mul__


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


_MIX_A = _signed(0x9E3779B97F4A7C15)
_MIX_B = _signed(0xBF58476D1CE4E5B9)
_MIX_C = _signed(0x94D049BB133111EB)


def raw_words(t: Tensor) -> Tensor:
    """The elements as integers of the same width, 1-D, row-major; complex as two words each."""
    t = t.detach()
    if t.is_quantized:
        t = t.int_repr()
    if t.is_complex():
        t = torch.view_as_real(t.resolve_conj())
    t = t.resolve_neg().contiguous()
    return t.view(_INTS[t.element_size()]).reshape(-1)


def digest_host(t: Tensor) -> int:
    """64-bit digest of the raw bytes of a CPU tensor; 0 bytes have a digest too."""
    if not t.is_contiguous() or t.is_quantized or t.is_neg() or t.is_conj():
        t = raw_words(t)
    nbytes = t.numel() * t.element_size()
    if nbytes == 0:
        return _digest_buffer(b"")
    return _digest_buffer(_CHAR(nbytes).from_address(t.data_ptr()))


def digest_device(t: Tensor, chunk: int = 1 << 20) -> Tensor:
    """64-bit digest as an int64 scalar tensor on ``t``'s device, without a synchronisation.

    Each word is mixed with its index by the SplitMix64 finaliser and the results are added; integer
    addition is associative, so the value does not depend on how the device reduces. Memory for
    the mixing is bounded by ``chunk`` words (8 bytes each, three at a time).
    """
    words = raw_words(t)
    total = torch.full((), words.numel(), dtype=torch.int64, device=t.device)
    for start in range(0, words.numel(), chunk):
        part = words[start : start + chunk].to(torch.int64)
        index = torch.arange(start + 1, start + 1 + part.numel(), device=t.device)
        # The word is spread before the index enters: small words and small indices overlap.
        total = total + _finalise((part * _MIX_B) ^ (index * _MIX_A)).sum()
    return total


def _finalise(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_B
    x = (x ^ _shift(x, 27)) * _MIX_C
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift (torch has the arithmetic one for signed words)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def hash_tensor(t: Tensor, *, device: bool = False) -> int:
    """Order-aware 64-bit hash of ``t``: bytes, dtype and shape.

    ``device=True`` uses the integer reduction that runs on accelerators (any device), else CPU
    tensors are read by xxHash. The two give different values for the same tensor.
    """
    on_device = device or t.device.type != "cpu"
    value = int(digest_device(t)) & _MASK if on_device else digest_host(t)
    head = f"{t.dtype}{tuple(t.shape)}".encode()
    return (value ^ (zlib.crc32(head) << 32 | zlib.crc32(head[::-1])) * 0x9E3779B97F4A7C15) & _MASK


def bit_equal(a: Tensor, b: Tensor) -> bool:
    """Same dtype, shape and raw bytes (NaN payloads and the sign of zero count)."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(raw_words(a), raw_words(b))


def ulp_distance(a: Tensor, b: Tensor) -> Tensor:
    """Steps between neighbouring representable numbers, elementwise, int64.

    Both signs of zero are 0 apart; a NaN against a number counts as 2^62. Other dtypes than
    floating point give the absolute difference.
    """
    if a.dtype not in _MANTISSA:
        return (a.to(torch.int64) - b.to(torch.int64)).abs()
    distance = (_ordered(a) - _ordered(b)).abs()
    nan_a, nan_b = a.isnan(), b.isnan()
    distance = distance.masked_fill(nan_a ^ nan_b, 1 << 62)
    return distance.masked_fill(nan_a & nan_b, 0)


def _ordered(t: Tensor) -> Tensor:
    """Integers in the order of the floats they stand for."""
    t = t.contiguous()
    width = 8 * t.element_size()
    words = t.view(_INTS[t.element_size()]).to(torch.int64)
    low = words & ((1 << (width - 1)) - 1)
    return torch.where(words < 0, -low, low)


def ulp_size(value: float, dtype: torch.dtype) -> float:
    """Spacing of ``dtype`` at ``value`` (for bf16 in [16, 32): 0.125)."""
    import math

    if value == 0 or not math.isfinite(value):
        return float(torch.finfo(dtype).tiny)
    exponent = math.frexp(abs(value))[1] - 1
    return float(math.ldexp(1.0, exponent - _MANTISSA.get(dtype, 23)))
