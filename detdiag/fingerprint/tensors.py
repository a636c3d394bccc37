"""Where each tensor of a checkpoint lies on disk; headers only, no values are read here."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError

DTYPE_BITS: Final[dict[str, int]] = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U16": 16,
    "I16": 16,
    "F16": 16,
    "BF16": 16,
    "U32": 32,
    "I32": 32,
    "F32": 32,
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
}
"""Element sizes of the safetensors format; other dtypes are read without the size check."""

_MAX_HEADER: Final = 100_000_000
"""The safetensors library's own limit on a header, in bytes."""


@dataclass(frozen=True, slots=True)
class TensorRef:
    """``size`` bytes at ``start`` of ``file``. ``strides`` (in elements) only where the tensor is
    a strided view of its storage, which ``.bin`` files allow; ``start`` is its first element."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    size: int
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class FileHeader:
    """Everything of one weight file but the tensor bytes; ``raw`` is hashed for the file digest."""

    path: Path
    kind: str
    raw: bytes
    tensors: tuple[TensorRef, ...]
    metadata: dict[str, Any]


def read_safetensors(path: Path) -> FileHeader:
    """Parse one header; raise :class:`DetdiagError` naming the file and the tensor at fault."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise DetdiagError(f"truncated: {size} bytes, no safetensors header", path=path)
        (length,) = struct.unpack("<Q", prefix)
        if length > min(size - 8, _MAX_HEADER):
            raise DetdiagError(
                f"truncated or not safetensors: header of {length} bytes in a file of {size}",
                path=path,
            )
        raw = file.read(length)
    try:
        header = json.loads(raw)
        metadata = header.pop("__metadata__", {})
        tensors = [_tensor(path, 8 + length, name, item) for name, item in header.items()]
    except (ValueError, AttributeError, RecursionError) as error:
        raise DetdiagError(f"corrupt safetensors header: {error}", path=path) from error
    tensors.sort(key=lambda tensor: (tensor.start, tensor.size))
    _check_layout(path, 8 + length, size, tensors)
    return FileHeader(path, "safetensors", prefix + raw, tuple(tensors), metadata)


def _tensor(path: Path, base: int, name: str, item: Any) -> TensorRef:
    try:
        begin, end = item["data_offsets"]
        shape = tuple(int(n) for n in item["shape"])
        dtype = str(item["dtype"])
        bits = DTYPE_BITS.get(dtype)
        expected = None if bits is None else math.prod(shape) * bits // 8
    except (KeyError, TypeError, ValueError) as error:
        raise DetdiagError(f"corrupt header entry of tensor {name!r}", path=path) from error
    if begin < 0 or end < begin or (expected is not None and end - begin != expected):
        raise DetdiagError(
            f"tensor {name!r}: {end - begin} bytes for {dtype} {list(shape)}, expected {expected}",
            path=path,
        )
    return TensorRef(name, dtype, shape, path, base + begin, end - begin)


def _check_layout(path: Path, base: int, size: int, tensors: list[TensorRef]) -> None:
    """The format allows neither holes nor overlaps; what is cut off is named by its tensor."""
    at = base
    for tensor in tensors:
        if tensor.start != at:
            raise DetdiagError(
                f"corrupt: tensor {tensor.name!r} starts at byte {tensor.start}, expected {at}",
                path=path,
            )
        at = tensor.start + tensor.size
        if at > size:
            raise DetdiagError(
                f"truncated: tensor {tensor.name!r} ends at byte {at} of a file of {size}",
                path=path,
                tip="download the file again",
            )
    if at != size:
        raise DetdiagError(f"corrupt: {size - at} bytes after the last tensor", path=path)
