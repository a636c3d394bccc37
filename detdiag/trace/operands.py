"""Operands as digests of bits, cut down to the row under test."""

from __future__ import annotations

import weakref
from collections import defaultdict
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from detdiag.trace.align import WHOLE, Cut, Shape, best_cut, cut_guess, cut_solo
from detdiag.trace.bits import digest_device, digest_host
from detdiag.trace.calls import Layout
from detdiag.trace.memory import memory_order
from detdiag.trace.modules import Frame, ModuleStack
from detdiag.trace.oplog import Coverage, Key, Sig, Trace

_NOTHING = nullcontext()


class _Storage(NamedTuple):
    """Last writer of a storage (-1: not an operator) while the storage lives at its address.

    Addresses are recycled, so the storage object itself is watched; ``version`` never repeats.
    """

    writer: int
    version: int
    alive: weakref.ref[Any]


class Operands:
    """Signatures of the tensors of one run.

    ``solo`` is the trace whose shapes align this one's row ``row``; ``whole`` takes tensors as
    they are (A/A pairs). ``names`` maps addresses of parameters and buffers to their names,
    ``weights`` keeps digests of parameters from trace to trace of one model.
    """

    def __init__(
        self,
        layouts: tuple[Layout, ...],
        *,
        row: int = 0,
        solo: Trace | None = None,
        whole: bool = False,
        names: dict[int, str] | None = None,
        weights: dict[Any, Any] | None = None,
        device_digests: bool = False,
    ) -> None:
        self.layouts = layouts
        self.row = row
        self.solo = solo
        self.whole = whole
        self.device_digests = device_digests
        self.stack = ModuleStack()
        self.coverage = Coverage()
        self.shapes: dict[Key, list[Shape]] = defaultdict(list)
        plain = all(not y.padded(0) and y.static is None for y in layouts)
        self.simple = solo is None and not whole and plain and layouts[0].n == 1
        """Whether this is a run of one row without padding: nothing to cut."""
        self.weights = {} if weights is None else weights
        self.below = False
        """Whether other dispatch modes run below and must not see the work of measuring."""
        self.names = names or {}
        self._version = 0
        self._storages: dict[int, _Storage] = {}
        self._digests: dict[tuple[Any, ...], int] = {}
        self._cuts: dict[tuple[Any, ...], Cut | None] = {}
        self._pending: list[Tensor] = []

    def wrote(self, t: Tensor, index: int) -> None:
        storage = t.untyped_storage()
        self._version += 1
        self._storages[storage.data_ptr()] = _Storage(index, self._version, weakref.ref(storage))

    def storage(self, t: Tensor) -> _Storage | None:
        """The known storage of ``t``, unless another one has taken its address."""
        try:
            storage = t.untyped_storage()
        except (RuntimeError, NotImplementedError):
            return None
        known = self._storages.get(storage.data_ptr())
        return known if known is not None and known.alive() is storage else None

    def sigs(self, frame: Frame, name: str, tensors: list[Any]) -> tuple[Sig, ...]:
        if not tensors:
            return ()
        with _disable_current_modes() if self.below else _NOTHING:
            return tuple([self._sig(frame, name, slot, t) for slot, _, t in tensors])

    def _sig(self, frame: Frame, name: str, slot: str, t: Tensor) -> Sig:
        try:
            storage = t.untyped_storage()
            address = storage.data_ptr() or id(t)
        except (RuntimeError, NotImplementedError):  # a wrapper without memory of its own
            return self._opaque(slot, t)
        known = self._storages.get(address)
        if known is not None and known.alive() is storage:
            producer, version = known.writer, known.version
            source = "" if producer >= 0 else self.names.get(address, "")
        else:
            producer, source = -1, self.names.get(address, "")
            version = 0 if source else -1
        raw, dtype = t.shape, _name(t.dtype)
        stride = t.stride() if t.layout is torch.strided else ()
        cut: Cut | None = WHOLE
        if source.startswith("parameter:"):
            if t.device.type == "cpu" and not self.device_digests:
                digest = self._weight(t, storage)
                return Sig(slot, digest, dtype, raw, raw, stride, -1, source, False)
            t = memory_order(t)
        elif self.simple:
            self.shapes[(frame.path, name, slot)].append(raw)
        elif not self.whole and not source.startswith("buffer:"):
            cut = self.cut((frame.path, name, slot), raw)
        if cut is None:
            self.coverage.unalignable += 1
            return Sig(slot, None, dtype, raw, raw, stride, producer, source, False)
        try:
            digest, shape = self._digest(t, cut, version)
        except (RuntimeError, NotImplementedError, TypeError):
            return self._opaque(slot, t)
        if 1 in shape:
            shape = tuple([s for s in shape if s != 1])
        return Sig(slot, digest, dtype, shape, raw, stride, producer, source, cut.batched)

    def _weight(self, t: Tensor, storage: Any) -> int:
        """Digest of a parameter as it lies in memory, kept from trace to trace of one model while
        its version stands."""
        counter = 0 if t.is_inference() else t._version
        key = (t.data_ptr(), t.numel(), t.dtype, counter)
        known = self.weights.get(key)
        if known is not None and known[0]() is storage:
            return known[1]
        self.coverage.bytes_hashed += t.numel() * t.element_size()
        digest = digest_host(memory_order(t))
        self.weights[key] = (weakref.ref(storage), digest)
        return digest

    def _opaque(self, slot: str, t: Tensor) -> Sig:
        self.coverage.opaque += 1
        return Sig(slot, None, str(t.dtype), (), tuple(t.shape), (), -1, "", False)

    def cut(self, key: Key, raw: Shape) -> Cut | None:
        memo = (key, raw, self.stack.steps)
        try:
            return self._cuts[memo]
        except KeyError:
            self._cuts[memo] = cut = self._new_cut(key, tuple(raw))
            return cut

    def _new_cut(self, key: Key, raw: Shape) -> Cut | None:
        step = min(self.stack.step, len(self.layouts) - 1)
        layout = self.layouts[step]
        if self.solo is None:
            self.shapes[key].append(raw)
            return cut_solo(raw, layout, self.row if layout.n > 1 else 0)
        alone = self.solo.layouts[min(step, len(self.solo.layouts) - 1)]
        found = best_cut(raw, self.solo.shapes.get(key, ()), layout, alone, self.row)
        return found or cut_guess(raw, layout, self.row)

    def _digest(self, t: Tensor, cut: Cut, version: int) -> tuple[int, Shape]:
        """Digest of the cut tensor; with ``version`` -1 nothing vouches for a cached one."""
        counter = 0 if t.is_inference() else t._version
        if cut is not WHOLE:
            t = cut.apply(t)
        shape, flat = t.shape, t.is_contiguous()
        key: tuple[Any, ...] | None = None
        if version >= 0 and not cut.copies:
            place = (t.data_ptr(), t.dtype, version, counter)
            key = (*place, t.numel()) if flat else (*place, shape, t.stride())
            known = self._digests.get(key)
            if known is not None:
                return known, shape
        self.coverage.bytes_hashed += t.numel() * t.element_size()
        if t.device.type == "cpu" and not self.device_digests:
            digest = digest_host(t)
        else:
            self._pending.append(digest_device(t))
            digest = -len(self._pending)
        if key is not None and t.numel():
            self._digests[key] = digest
        return digest, shape

    def resolver(self) -> Resolver:
        """Digests that waited on a device, read with one copy."""
        return Resolver(torch.stack(self._pending).tolist() if self._pending else [])


class Resolver:
    """Puts digests read from a device where their numbers stand."""

    def __init__(self, values: list[int]) -> None:
        self.values = values

    def __call__(self, sigs: tuple[Sig, ...]) -> tuple[Sig, ...]:
        values = self.values
        return tuple(
            s._replace(digest=values[-s.digest - 1] & (1 << 64) - 1)
            if s.digest is not None and s.digest < 0
            else s
            for s in sigs
        )


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype)
