"""Digests of a checkpoint: per tensor, in all, and per file, streamed and in parallel.

``digest`` of the whole is independent of sharding and of the file format's layout: it is taken
over the sorted (name, dtype, shape, digest of the bytes). ``values_digest`` leaves out the names.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.fingerprint.gguf import read_gguf
from detdiag.fingerprint.tensors import FileHeader, TensorRef, read_safetensors
from detdiag.fingerprint.torchbin import read_torch_bin

_CHUNK: Final = 1 << 20
"""Bytes a read: fits the second-level cache, so hashing does not wait for memory."""

_INDEXED: Final = (
    ("model.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
"""What ``from_pretrained`` looks for, in its order (transformers/modeling_utils.py)."""

_ADAPTERS: Final = ("adapter_model.safetensors", "adapter_model.bin")


@dataclass(frozen=True, slots=True)
class TensorDigest:
    """``digest`` is the 128-bit XXH3 of the bytes in row-major order, as hex."""

    dtype: str
    shape: tuple[int, ...]
    digest: str

    def line(self) -> str:
        return f"{self.dtype}\t{list(self.shape)}\t{self.digest}"


def weight_files(path: Path) -> list[Path]:
    """The weight files that a loader would read from a model folder (or the file itself)."""
    if path.is_file():
        return [path]
    found = _loaded_files(path)
    return found + [path / name for name in _ADAPTERS if (path / name).is_file()]


def _loaded_files(folder: Path) -> list[Path]:
    for single, index in _INDEXED:
        if (folder / single).is_file():
            return [folder / single]
        if (folder / index).is_file():
            return _shards(folder / index)
    for pattern in ("*.safetensors", "*.gguf", "*.bin", "*.pth"):
        files = [f for f in sorted(folder.glob(pattern)) if f.name not in _ADAPTERS]
        files = [f for f in files if f.name not in ("training_args.bin", "optimizer.bin")]
        if files:
            return files
    return []


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DetdiagError("corrupt weight index", path=index) from error
    files = [index.parent / Path(str(name)).name for name in names]
    for file in files:
        if not file.is_file():
            raise DetdiagError(f"shard {file.name} is missing", path=index)
    return files


def read_headers(path: Path) -> tuple[list[FileHeader], list[Path]]:
    """Headers of all weight files, and the files that can only be hashed as a whole."""
    headers: list[FileHeader] = []
    opaque: list[Path] = []
    for file in weight_files(path):
        header = _read_header(file)
        if header is None:
            opaque.append(file)
        else:
            headers.append(header)
    return headers, opaque


def _read_header(file: Path) -> FileHeader | None:
    try:
        if file.suffix == ".safetensors":
            return read_safetensors(file)
        if file.suffix == ".gguf":
            return read_gguf(file)
        return read_torch_bin(file)
    except OSError as error:
        raise DetdiagError(f"cannot read: {error.strerror}", path=file) from error


def hash_weights(path: Path, threads: int | None = None) -> dict[str, Any]:
    """The ``weights`` section: digest, values_digest, count, bytes, dtypes, files, tensors.

    Raises :class:`DetdiagError` naming file and tensor for a truncated or corrupt checkpoint.
    """
    headers, opaque = read_headers(path)
    if not headers and not opaque:
        return {}
    refs = [tensor for header in headers for tensor in header.tensors]
    with ThreadPoolExecutor(threads or min(8, os.cpu_count() or 1)) as pool:
        digests = list(pool.map(hash_tensor, refs))
        whole = list(pool.map(hash_file, opaque))
    tensors = {
        _unique_name(ref): TensorDigest(ref.dtype, ref.shape, digest)
        for ref, digest in zip(refs, digests, strict=True)
    }
    by_ref = dict(zip(refs, digests, strict=True))
    files = {h.path.name: _file_entry(h, by_ref) for h in headers}
    files |= {
        file.name: {"kind": "opaque", "bytes": file.stat().st_size, "digest": digest}
        for file, digest in zip(opaque, whole, strict=True)
    }
    out = _section(tensors, files, dict(zip((f.name for f in opaque), whole, strict=True)), refs)
    metadata = {k: v for h in headers if h.kind == "gguf" for k, v in h.metadata.items()}
    return out | ({"metadata": metadata} if metadata else {})


def _section(
    tensors: dict[str, TensorDigest],
    files: dict[str, Any],
    opaque: dict[str, str],
    refs: Sequence[TensorRef],
) -> dict[str, Any]:
    lines = [f"{name}\t{t.line()}" for name, t in tensors.items()]
    lines += [f"{name}\tfile\t{digest}" for name, digest in opaque.items()]
    values = [t.line() for t in tensors.values()] + list(opaque.values())
    dtypes: dict[str, int] = {}
    for tensor in tensors.values():
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + 1
    return {
        "digest": _digest_of(lines),
        "values_digest": _digest_of(values),
        "count": len(tensors),
        "bytes": sum(ref.size for ref in refs),
        "dtypes": dict(sorted(dtypes.items())),
        "files": files,
        "tensors": {
            name: [t.dtype, list(t.shape), t.digest] for name, t in sorted(tensors.items())
        },
    }


def _digest_of(lines: Sequence[str]) -> str:
    return "sha256:" + hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _unique_name(ref: TensorRef) -> str:
    return f"adapter:{ref.name}" if ref.file.name in _ADAPTERS else ref.name


def _file_entry(header: FileHeader, digests: dict[TensorRef, str]) -> dict[str, Any]:
    """The file digest is a tree: header bytes, then tensor digests in file order, so that the
    bytes are read once for both digests."""
    import xxhash

    tree = xxhash.xxh3_128(header.raw)
    for tensor in header.tensors:
        tree.update(digests[tensor].encode())
    return {
        "kind": header.kind,
        "bytes": header.path.stat().st_size,
        "digest": f"xxh3-tree:{tree.hexdigest()}",
    }


def hash_tensor(ref: TensorRef) -> str:
    """128-bit XXH3 (hex) of the tensor's bytes in row-major order."""
    import xxhash

    state = xxhash.xxh3_128()
    if ref.strides is not None:
        state.update(_gathered(ref))
        return state.hexdigest()
    buffer = memoryview(bytearray(min(_CHUNK, max(1, ref.size))))
    for size in _read_into(ref.file, ref.start, ref.size, buffer, ref.name):
        state.update(buffer[:size])
    return state.hexdigest()


def hash_file(path: Path) -> str:
    """``xxh3:`` and the 128-bit XXH3 (hex) of a whole file."""
    import xxhash

    state = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_CHUNK))
    for size in _read_into(path, 0, path.stat().st_size, buffer, "the file"):
        state.update(buffer[:size])
    return f"xxh3:{state.hexdigest()}"


def _read_into(path: Path, start: int, size: int, buffer: memoryview, what: str) -> Iterator[int]:
    """Fill ``buffer`` again and again; yields how many bytes are in it."""
    left = size
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            while left:
                got = file.readinto(buffer[: min(len(buffer), left)])
                if not got:
                    raise DetdiagError(f"truncated while reading {what!r}", path=path)
                left -= got
                yield got
    except OSError as error:
        raise DetdiagError(f"cannot read {what!r}: {error.strerror}", path=path) from error


def _gathered(ref: TensorRef) -> bytes:
    """Row-major bytes of a strided view."""
    import numpy as np

    itemsize = ref.size // max(1, _count(ref.shape))
    last = sum((n - 1) * s for n, s in zip(ref.shape, ref.strides or (), strict=True))
    span = (last + 1) * itemsize if ref.size else 0
    raw = np.memmap(ref.file, np.uint8, "r", ref.start, (span,)) if span else np.empty(0, np.uint8)
    items = np.asarray(raw).view(f"V{itemsize}") if span else raw
    view = np.lib.stride_tricks.as_strided(
        items, ref.shape, tuple(s * itemsize for s in ref.strides or ())
    )
    return np.ascontiguousarray(view).tobytes()


def _count(shape: Sequence[int]) -> int:
    out = 1
    for size in shape:
        out *= size
    return out
