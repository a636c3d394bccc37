"""Tensors and metadata of a GGUF file, read with the standard library.

Layout: the GGUF specification in the ggml repository (docs/gguf.md), versions 2 and 3; block
sizes from ggml's type traits.
"""

from __future__ import annotations

import hashlib
import math
import struct
from pathlib import Path
from typing import Any, BinaryIO, Final

from detdiag.errors import DetdiagError
from detdiag.fingerprint.tensors import FileHeader, TensorRef

BLOCKS: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
"""ggml type id: (name, elements a block, bytes a block)."""

_SCALARS: Final[dict[int, str]] = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_LONG: Final = 64
"""Arrays beyond this many items (vocabularies) are kept as a digest."""


class _Reader:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file = file
        self.path = path

    def take(self, size: int, what: str) -> bytes:
        raw = self.file.read(size) if 0 <= size < 1 << 31 else b""
        if len(raw) != size:
            raise DetdiagError(f"truncated GGUF: {what} is cut off", path=self.path)
        return raw

    def scalar(self, layout: str, what: str) -> Any:
        return struct.unpack(layout, self.take(struct.calcsize(layout), what))[0]

    def string(self, what: str) -> str:
        return self.take(self.scalar("<Q", what), what).decode("utf-8", "backslashreplace")

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY and depth < 8:
            inner, count = self.scalar("<I", what), self.scalar("<Q", what)
            if inner in _SCALARS:
                layout = "<" + str(count) + _SCALARS[inner][1]
                size = struct.calcsize("<" + _SCALARS[inner][1]) * count
                return list(struct.unpack(layout, self.take(size, what)))
            return [self.value(inner, what, depth + 1) for _ in range(count)]
        if kind not in _SCALARS:
            raise DetdiagError(f"corrupt GGUF: {what} has unknown type {kind}", path=self.path)
        return self.scalar(_SCALARS[kind], what)


def read_gguf(path: Path) -> FileHeader:
    """Parse metadata and tensor places; long arrays of the metadata become digests."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        reader = _Reader(file, path)
        if reader.take(4, "the magic number") != b"GGUF":
            raise DetdiagError("not a GGUF file", path=path)
        version = reader.scalar("<I", "the version")
        if version not in (2, 3):
            raise DetdiagError(f"GGUF version {version} is not supported", path=path)
        tensor_count = reader.scalar("<Q", "the tensor count")
        metadata = _metadata(reader, reader.scalar("<Q", "the metadata count"))
        infos = [_info(reader, i) for i in range(tensor_count)]
        alignment = int(metadata.get("general.alignment", 32)) or 32
        base = math.ceil(file.tell() / alignment) * alignment
        file.seek(0)
        raw = reader.take(base, "the header") if base <= size else file.read()
    tensors = [_ref(path, size, base, *info) for info in infos]
    tensors.sort(key=lambda tensor: tensor.start)
    short = {key: _shortened(value) for key, value in metadata.items()}
    return FileHeader(path, "gguf", raw, tuple(tensors), short)


def _metadata(reader: _Reader, count: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for _ in range(count):
        key = reader.string("a metadata key")
        out[key] = reader.value(reader.scalar("<I", key), f"metadata {key!r}")
    return out


def _info(reader: _Reader, index: int) -> tuple[str, tuple[int, ...], int, int]:
    name = reader.string(f"the name of tensor {index}")
    rank = reader.scalar("<I", f"tensor {name!r}")
    if rank > 8:
        raise DetdiagError(f"corrupt GGUF: tensor {name!r} has rank {rank}", path=reader.path)
    # GGUF stores the fastest-moving dimension first; written here as other formats do.
    shape = tuple(reader.scalar("<Q", f"tensor {name!r}") for _ in range(rank))[::-1]
    kind = reader.scalar("<I", f"tensor {name!r}")
    return name, shape, kind, reader.scalar("<Q", f"tensor {name!r}")


def _ref(
    path: Path, size: int, base: int, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> TensorRef:
    if kind not in BLOCKS:
        raise DetdiagError(f"tensor {name!r} has unknown ggml type {kind}", path=path)
    dtype, block, block_bytes = BLOCKS[kind]
    length = math.prod(shape) // block * block_bytes
    if base + offset + length > size:
        raise DetdiagError(
            f"truncated: tensor {name!r} ends at byte {base + offset + length} of a file of {size}",
            path=path,
            tip="download the file again",
        )
    return TensorRef(name, dtype, shape, path, base + offset, length)


def _shortened(value: Any) -> Any:
    if isinstance(value, list) and len(value) > _LONG:
        digest = hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()
        return {"items": len(value), "sha256": digest}
    return value
