"""The trace: a dispatch mode that records every operator of a forward with digests of its bits."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from detdiag.trace.align import WHOLE, Cut, Shape, best_cut, cut_guess, cut_solo
from detdiag.trace.bits import digest_device, digest_host
from detdiag.trace.calls import ForwardCall, Layout
from detdiag.trace.memory import address_of, memory_order, renames, storage_names
from detdiag.trace.modules import Frame, ModuleStack, tracked
from detdiag.trace.oplog import Anchor, Coverage, Key, Op, Sig, Trace
from detdiag.trace.schema import OpInfo, named_tensors, op_info, scalars, tensors_in

_NOTHING = nullcontext()
_WEIGHTS: weakref.WeakKeyDictionary[nn.Module, dict[Any, Any]] = weakref.WeakKeyDictionary()
_OUT = tuple(f"out.{i}" for i in range(7)) + ("out.more",)


class _Storage(NamedTuple):
    """Last writer of a storage (-1: not an operator) while the storage lives at its address.

    Addresses are recycled, so the storage object itself is watched; ``version`` never repeats.
    """

    writer: int
    version: int
    alive: weakref.ref[Any]


Sink = Callable[[Frame, Tensor], None]
"""Takes the aligned first output of a module call."""


class Recorder(TorchDispatchMode):
    """Record operators. ``solo`` is the trace whose shapes align this one's row ``row``.

    ``whole`` takes tensors as they are (A/A pairs); ``watch_random`` reads the CPU generator's
    state around every operator.
    """

    def __init__(
        self,
        layouts: tuple[Layout, ...],
        *,
        row: int = 0,
        solo: Trace | None = None,
        whole: bool = False,
        watch_random: bool = False,
        names: dict[int, str] | None = None,
        sink: Sink | None = None,
        leaves: frozenset[str] = frozenset(),
        device_digests: bool = False,
    ) -> None:
        super().__init__()
        self.layouts = layouts
        self.row = row
        self.solo = solo
        self.whole = whole
        self.watch_random = watch_random
        self.stack = ModuleStack()
        self.ops: list[Op] = []
        self.anchors: list[Anchor] = []
        self.open: list[Anchor] = []
        self.coverage = Coverage()
        self.shapes: dict[Key, list[Shape]] = defaultdict(list)
        self.sink = sink
        self.leaves = leaves
        self.device_digests = device_digests
        self.paused = False
        plain = all(not y.padded(0) and y.static is None for y in layouts)
        self.simple = solo is None and not whole and plain and layouts[0].n == 1
        """Whether this is a run of one row without padding: nothing to cut."""
        self.weights: dict[tuple[Any, ...], tuple[weakref.ref[Any], int]] = {}
        self.below = False
        """Whether other dispatch modes run below and must not see the work of measuring."""
        self._names = names or {}
        self._version = 0
        self._storages: dict[int, _Storage] = {}
        self._digests: dict[tuple[Any, ...], int] = {}
        self._cuts: dict[tuple[Any, ...], Cut | None] = {}
        self._pending: list[Tensor] = []
        self._seen: dict[tuple[Frame, str], int] = {}
        self._keep: list[Any] = []

    # -- dispatch ---------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        info = op_info(func)
        if info.view or self.paused:
            self.coverage.views += not self.paused
            return func(*args, **kwargs)
        if info.metadata:
            out = func(*args, **kwargs)
            if info.name == "aten.lift_fresh":
                self._wrote(out, -1)
            return out
        return self._traced(info, func, args, kwargs)

    def _traced(self, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        tensors = named_tensors(info, args, kwargs)
        frame = self.stack.top
        before: tuple[Sig, ...] = ()
        if info.writes:
            before = self._sigs(frame, info.name, tensors)
        watch = self.watch_random or info.seeded
        state = _random_state(tensors) if watch else None
        out = func(*args, **kwargs)
        results = [out] if isinstance(out, Tensor) else tensors_in(out)
        if not info.writes:
            if renames(tensors, results):
                self.coverage.views += 1
                return out
            before = self._sigs(frame, info.name, tensors)
        self._record(info, frame, args, kwargs, tensors, results, before, state)
        return out

    def _record(
        self,
        info: OpInfo,
        frame: Frame,
        args: Any,
        kwargs: Any,
        tensors: list[Any],
        results: list[Tensor],
        before: tuple[Sig, ...],
        state: tuple[int, ...] | None,
    ) -> None:
        index = len(self.ops)
        written = [(_OUT[min(i, 7)], "out", t) for i, t in enumerate(results)]
        if info.writes:
            ids = {id(t) for t in results}
            written += [w for w in tensors if w[1] in info.writes and id(w[2]) not in ids]
        floating = False
        for _, _, t in written:
            self._wrote(t, index)
            floating = floating or t.is_floating_point()
        outputs = () if info.empty else self._sigs(frame, info.name, written)
        drew = state is not None and state != _random_state(tensors)
        key = (frame, info.name)
        seen = self._seen.get(key, 0)
        self._seen[key] = seen + 1
        self.ops.append(
            Op(
                index,
                info.name,
                frame,
                seen,
                scalars(args, kwargs),
                before,
                outputs,
                floating,
                info.seeded,
                drew,
            )
        )
        self.coverage.operators += 1

    # -- operands ---------------------------------------------------------------------------

    def _wrote(self, t: Tensor, index: int) -> None:
        storage = t.untyped_storage()
        self._version += 1
        self._storages[storage.data_ptr()] = _Storage(index, self._version, weakref.ref(storage))

    def _storage(self, t: Tensor) -> _Storage | None:
        """The known storage of ``t``, unless another one has taken its address."""
        try:
            storage = t.untyped_storage()
        except (RuntimeError, NotImplementedError):
            return None
        known = self._storages.get(storage.data_ptr())
        return known if known is not None and known.alive() is storage else None

    def _sigs(self, frame: Frame, name: str, tensors: list[Any]) -> tuple[Sig, ...]:
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
            source = "" if producer >= 0 else self._names.get(address, "")
        else:
            producer, source = -1, self._names.get(address, "")
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
            cut = self._cut((frame.path, name, slot), raw)
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

    def _cut(self, key: Key, raw: Shape) -> Cut | None:
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

    # -- modules ----------------------------------------------------------------------------

    def enter(self, frame: Frame, arguments: Any) -> None:
        """Note what goes into a module call (no dispatch mode sees the work done here)."""
        self.paused = True
        try:
            self._enter(frame, arguments)
        finally:
            self.paused = False

    def leave(self, frame: Frame, output: Any) -> None:
        """Note what comes out of a module call."""
        self.paused = True
        try:
            self._leave(frame, output)
        finally:
            self.paused = False

    def _enter(self, frame: Frame, arguments: Any) -> None:
        if len(self.stack.frames) == 1:
            self._keep.append(arguments)
            for slot, _, t in _given(arguments):
                self._names.setdefault(address_of(t), f"input:{slot[3:]}")
        leaf = frame.path in self.leaves
        inputs = () if leaf else self._sigs(frame, "module", _given(arguments))
        anchor = Anchor(frame, len(self.ops), inputs, held=arguments if leaf else None)
        self.open.append(anchor)
        self.anchors.append(anchor)

    def _leave(self, frame: Frame, output: Any) -> None:
        anchor = self.open.pop()
        while anchor.frame != frame and self.open:
            anchor = self.open.pop()
        anchor.last_op = len(self.ops)
        held, anchor.held = anchor.held, None
        if held is not None and anchor.last_op > anchor.first_op and self.sink is None:
            return  # its operators say all there is to say about a module without children
        tensors = [(_OUT[min(i, 7)], "", t) for i, t in enumerate(tensors_in(output, 2))]
        if held is not None and anchor.last_op == anchor.first_op:
            anchor.inputs = self._sigs(frame, "module", _given(held))
        for _, _, t in tensors:
            if self._storage(t) is None and address_of(t) not in self._names and t.numel():
                self.coverage.hidden += 1
                self.coverage.notes.append(
                    f"{frame.path or 'model'} returns a tensor that no traced operator wrote"
                )
        anchor.outputs = self._sigs(frame, "module", tensors)
        if self.sink is not None and tensors:
            shape = tuple(tensors[0][2].shape)
            cut = WHOLE if self.whole else self._cut((frame.path, "module", "out.0"), shape)
            if cut is not None:
                with _disable_current_modes():
                    self.sink(frame, cut.apply(tensors[0][2]))

    def finish(self, logits: Tensor) -> Trace:
        """Resolve digests that wait on a device (one copy) and close the trace."""
        storage = self._storage(logits)
        resolved = torch.stack(self._pending).tolist() if self._pending else []
        if resolved:
            for op in self.ops:
                op.inputs = _resolve(op.inputs, resolved)
                op.outputs = _resolve(op.outputs, resolved)
            for anchor in self.anchors:
                anchor.inputs = _resolve(anchor.inputs, resolved)
                anchor.outputs = _resolve(anchor.outputs, resolved)
        return Trace(
            ops=self.ops,
            anchors=self.anchors,
            output=storage.writer if storage else -1,
            logits=logits,
            layouts=self.layouts,
            coverage=self.coverage,
            shapes=dict(self.shapes),
            whole=self.whole,
        )


def _resolve(sigs: tuple[Sig, ...], values: list[int]) -> tuple[Sig, ...]:
    return tuple(
        s._replace(digest=values[-s.digest - 1] & (1 << 64) - 1)
        if s.digest is not None and s.digest < 0
        else s
        for s in sigs
    )


def _random_state(tensors: list[Any]) -> tuple[int, ...]:
    """Digest of the CPU generator's state, and the offset of the CUDA generator in use."""
    state = digest_host(torch.random.default_generator.get_state())
    device = next((t.device for _, _, t in tensors if t.device.type == "cuda"), None)
    if device is None:
        return (state,)
    generator = torch.cuda.default_generators[device.index or 0]
    return (state, generator.initial_seed(), generator.get_offset())


def _given(arguments: Any) -> list[tuple[str, str, Tensor]]:
    """Tensor arguments of a module call by slot."""
    args, kwargs = arguments
    out = [(f"in.{i}", "", t) for i, t in enumerate(tensors_in(args, 2))]
    return out + [(f"in.{k}", "", v) for k, v in kwargs.items() if isinstance(v, Tensor)]


@cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype)


def record(
    model: nn.Module,
    call: ForwardCall,
    *,
    row: int = 0,
    solo: Trace | None = None,
    whole: bool = False,
    watch_random: bool = False,
    inner: tuple[Any, ...] = (),
    sink: Sink | None = None,
    device_digests: bool = False,
) -> Trace:
    """Run ``call`` under the trace; ``inner`` are context managers that run below it.

    ``device_digests`` hashes CPU tensors too by the integer reduction that accelerators use, read
    once at the end of the forward.
    """
    recorder = Recorder(
        call.layouts(),
        row=row,
        solo=solo,
        whole=whole,
        watch_random=watch_random,
        names=storage_names(model),
        sink=sink,
        device_digests=device_digests,
        leaves=frozenset(n for n, m in model.named_modules() if n and not m._modules),
    )
    recorder.weights = _WEIGHTS.setdefault(model, {})
    with ExitStack() as contexts:
        for manager in inner:
            contexts.enter_context(manager)
        logits = _run(recorder, model, call)
    return recorder.finish(logits)


def _run(recorder: Recorder, model: nn.Module, call: ForwardCall) -> Tensor:
    with tracked(model, enter=recorder.enter, leave=recorder.leave) as stack:
        recorder.stack = stack
        recorder.below = torch._C._len_torch_dispatch_stack() > 0
        with _entered(recorder):
            return call.run(model)


@contextmanager
def _entered(mode: TorchDispatchMode) -> Iterator[None]:
    with mode:
        yield
