"""Tensors of a ``torch.save`` file (zip form) without running its pickle.

The pickle is walked by an unpickler whose ``find_class`` hands out stand-ins only, so nothing
that the file names is imported or called. Layout facts: ``torch/serialization.py`` and
``torch/_utils.py`` (``_rebuild_tensor_v2(storage, offset, size, stride, ...)``).
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.fingerprint.tensors import FileHeader, TensorRef

_STORAGES: Final[dict[str, tuple[str, int]]] = {
    "FloatStorage": ("F32", 4),
    "DoubleStorage": ("F64", 8),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2),
    "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1),
}


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: str
    itemsize: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Inert:
    """Stands for any class of the pickle; building it does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        pass


def _rebuild(storage: Any, offset: int, shape: Any, strides: Any, *rest: Any) -> Any:
    if not isinstance(storage, _Storage):
        return _Inert()
    return _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


def _parameter(data: Any, *rest: Any) -> Any:
    return data


class _Walker(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _parameter
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return name
        return _Inert

    def persistent_load(self, pid: Any) -> Any:
        kind, storage, key = pid[0], pid[1], pid[2]
        if kind != "storage" or storage not in _STORAGES:
            return _Inert()
        return _Storage(str(key), *_STORAGES[storage])


def read_torch_bin(path: Path) -> FileHeader | None:
    """Tensor places of a zip checkpoint; None for the older form, which is hashed as a whole."""
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            if file.read(4) == b"PK\x03\x04":
                raise DetdiagError("truncated: zip directory missing", path=path)
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = next(n for n in archive.namelist() if n.endswith("data.pkl"))
            raw = archive.read(pickled)
            places = _storage_places(path, archive, pickled.removesuffix("data.pkl") + "data/")
        root = _Walker(io.BytesIO(raw)).load()
    except DetdiagError:
        raise
    except Exception as error:  # noqa: BLE001  (a hostile pickle can raise anything)
        raise DetdiagError(f"cannot read the checkpoint's index: {error}", path=path) from error
    tensors = [_ref(path, name, item, places) for name, item in _named(root)]
    return FileHeader(path, "torch", raw, tuple(sorted(tensors, key=lambda t: t.start)), {})


def _storage_places(
    path: Path, archive: zipfile.ZipFile, folder: str
) -> dict[str, tuple[int, int]]:
    """Byte offset and size of each stored (never compressed) storage."""
    out: dict[str, tuple[int, int]] = {}
    with open(path, "rb") as file:
        for info in archive.infolist():
            if not info.filename.startswith(folder):
                continue
            key = info.filename.removeprefix(folder)
            if info.compress_type != zipfile.ZIP_STORED:
                raise DetdiagError(f"storage {key} is compressed", path=path)
            file.seek(info.header_offset + 26)
            name_length, extra_length = struct.unpack("<HH", file.read(4))
            out[key] = (info.header_offset + 30 + name_length + extra_length, info.file_size)
    return out


def _named(root: Any, prefix: str = "") -> list[tuple[str, _Tensor]]:
    found: list[tuple[str, _Tensor]] = []
    if isinstance(root, Mapping):
        for key, value in root.items():
            name = f"{prefix}{key}"
            if isinstance(value, _Tensor):
                found.append((name, value))
            elif isinstance(value, Mapping) and prefix.count(".") < 8:
                found += _named(value, f"{name}.")
    return found


def _ref(path: Path, name: str, tensor: _Tensor, places: dict[str, tuple[int, int]]) -> TensorRef:
    storage = tensor.storage
    start, available = places.get(storage.key, (0, -1))
    count = math.prod(tensor.shape)
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
    if count and (tensor.offset + last + 1) * storage.itemsize > available:
        raise DetdiagError(f"tensor {name!r} lies outside its storage {storage.key}", path=path)
    strides = None if _contiguous(tensor) else tensor.strides
    return TensorRef(
        name,
        storage.dtype,
        tensor.shape,
        path,
        start + tensor.offset * storage.itemsize,
        count * storage.itemsize,
        strides,
    )


def _contiguous(tensor: _Tensor) -> bool:
    step = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
