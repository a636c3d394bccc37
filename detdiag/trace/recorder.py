"""The trace: a dispatch mode that records every operator of a forward with digests of its bits."""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from detdiag.trace.align import WHOLE, Cut, Shape, best_cut, cut_guess, cut_solo
from detdiag.trace.bits import digest_device, digest_host
from detdiag.trace.calls import ForwardCall, Layout
from detdiag.trace.modules import Frame, ModuleStack, tracked
from detdiag.trace.schema import OpInfo, named_tensors, op_info, scalar_text, tensors_in

Key = tuple[str, str, str]
"""(module path, operator, slot): where solo shapes are looked up."""


class Sig(NamedTuple):
    """One operand: ``digest`` of the aligned bits (None: unalignable or opaque), their dtype and
    shape without sizes of 1, the raw shape and strides, and the operator that wrote it (-1: none
    in this forward; ``source`` then names a parameter, a buffer or a call input)."""

    slot: str
    digest: int | None
    dtype: str
    shape: Shape
    raw: Shape
    stride: Shape
    producer: int
    source: str
    batched: bool


@dataclass(slots=True)
class Op:
    """One operator call, in the order of the forward."""

    index: int
    name: str
    frame: Frame
    occurrence: int
    scalars: str
    inputs: tuple[Sig, ...]
    outputs: tuple[Sig, ...]
    floating: bool
    seeded: bool = False
    drew: bool = False
    """Whether the random state moved while it ran."""


@dataclass(slots=True)
class Anchor:
    """Digests at the door of one module call, with the operators that ran in it."""

    frame: Frame
    first_op: int
    inputs: tuple[Sig, ...]
    outputs: tuple[Sig, ...] = ()
    last_op: int = -1


@dataclass(slots=True)
class Coverage:
    """What the trace saw and what it could not see."""

    operators: int = 0
    views: int = 0
    bytes_hashed: int = 0
    unalignable: int = 0
    hidden: int = 0
    opaque: int = 0
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in self.__slots__}


@dataclass(slots=True)
class Trace:
    """One traced forward."""

    ops: list[Op]
    anchors: list[Anchor]
    output: int
    """Index of the operator that wrote the logits (-1 when hidden)."""
    logits: Tensor
    layouts: tuple[Layout, ...]
    coverage: Coverage
    shapes: dict[Key, list[Shape]]


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
        self._names = names or {}
        self._version = 0
        self._storages: dict[int, _Storage] = {}
        self._digests: dict[tuple[Any, ...], int] = {}
        self._cuts: dict[tuple[Any, ...], Cut | None] = {}
        self._pending: list[Tensor] = []
        self._seen: Counter[tuple[Frame, str]] = Counter()
        self._keep: list[Any] = []

    # -- dispatch ---------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        info = op_info(func)
        if info.metadata:
            out = func(*args, **kwargs)
            if info.name == "aten.lift_fresh":
                self._wrote(out, -1)
            return out
        tensors = named_tensors(info, args, kwargs)
        frame = self.stack.top
        before: tuple[Sig, ...] = ()
        if info.writes:
            before = self._sigs(frame, info.name, tensors)
        state = torch.random.default_generator.get_state() if self._random(info) else None
        out = func(*args, **kwargs)
        results = [out] if isinstance(out, Tensor) else tensors_in(out)
        if not info.writes:
            if renames(tensors, results):
                self.coverage.views += 1
                return out
            before = self._sigs(frame, info.name, tensors)
        self._record(info, frame, args, kwargs, tensors, results, before, state)
        return out

    def _random(self, info: OpInfo) -> bool:
        return self.watch_random or info.seeded

    def _record(
        self,
        info: OpInfo,
        frame: Frame,
        args: Any,
        kwargs: Any,
        tensors: list[Any],
        results: list[Tensor],
        before: tuple[Sig, ...],
        state: Tensor | None,
    ) -> None:
        index = len(self.ops)
        written = [(f"out.{i}", "out", t) for i, t in enumerate(results)]
        ids = {id(t) for t in results}
        written += [w for w in tensors if w[1] in info.writes and id(w[2]) not in ids]
        for _, _, t in written:
            self._wrote(t, index)
        outputs = () if info.empty else self._sigs(frame, info.name, written)
        drew = state is not None and not torch.equal(
            state, torch.random.default_generator.get_state()
        )
        key = (frame, info.name)
        op = Op(
            index=index,
            name=info.name,
            frame=frame,
            occurrence=self._seen[key],
            scalars=scalar_text(args, kwargs),
            inputs=before,
            outputs=outputs,
            floating=any(t.is_floating_point() for _, _, t in written),
            seeded=info.seeded,
            drew=drew,
        )
        self._seen[key] += 1
        self.ops.append(op)
        self.coverage.operators += 1

    # -- operands ---------------------------------------------------------------------------

    def _wrote(self, t: Tensor, index: int) -> None:
        storage = t.untyped_storage()
        self._version += 1
        self._storages[storage.data_ptr()] = _Storage(index, self._version, weakref.ref(storage))

    def _storage(self, t: Tensor) -> _Storage | None:
        """The known storage of ``t``, unless another one has taken its address."""
        known = self._storages.get(_address(t))
        if known is None or known.alive() is not t.untyped_storage():
            return None
        return known

    def _sigs(self, frame: Frame, name: str, tensors: list[Any]) -> tuple[Sig, ...]:
        return tuple(self._sig(frame, name, slot, t) for slot, argument, t in tensors)

    def _sig(self, frame: Frame, name: str, slot: str, t: Tensor) -> Sig:
        storage = self._storage(t)
        producer = storage.writer if storage else -1
        source = "" if producer >= 0 else self._names.get(_address(t), "")
        raw = tuple(t.shape)
        stride = tuple(t.stride()) if t.layout == torch.strided else ()
        if source.startswith(("parameter:", "buffer:")):
            cut: Cut | None = WHOLE
        else:
            cut = self._cut((frame.path, name, slot), raw)
        if cut is None:
            self.coverage.unalignable += 1
            return Sig(slot, None, str(t.dtype), raw, raw, stride, producer, source, False)
        version = storage.version if storage else 0 if source else None
        try:
            if source.startswith("parameter:"):
                t = _memory_order(t)
            digest, shape = self._digest(t, cut, version)
        except (RuntimeError, NotImplementedError, TypeError):
            self.coverage.opaque += 1
            return Sig(slot, None, str(t.dtype), raw, raw, stride, producer, source, False)
        short = tuple(s for s in shape if s != 1)
        return Sig(slot, digest, str(t.dtype), short, raw, stride, producer, source, cut.batched)

    def _cut(self, key: Key, raw: Shape) -> Cut | None:
        step = min(self.stack.step, len(self.layouts) - 1)
        layout = self.layouts[step]
        if self.whole:
            return WHOLE
        if self.solo is None:
            shapes = self.shapes[key]
            if raw not in shapes:
                shapes.append(raw)
            return cut_solo(raw, layout, self.row if layout.n > 1 else 0)
        memo = (key, raw, step)
        if memo not in self._cuts:
            alone = self.solo.layouts[min(step, len(self.solo.layouts) - 1)]
            found = best_cut(raw, self.solo.shapes.get(key, ()), layout, alone, self.row)
            self._cuts[memo] = found or cut_guess(raw, layout, self.row)
        return self._cuts[memo]

    def _digest(self, t: Tensor, cut: Cut, version: int | None) -> tuple[int, Shape]:
        """Digest of the cut tensor; with ``version`` None nothing vouches for a cached one."""
        counter = t._version if not t.is_inference() else 0
        if cut is not WHOLE:
            t = cut.apply(t)
        shape = tuple(t.shape)
        if t.is_contiguous():
            key: tuple[Any, ...] = (t.data_ptr(), t.numel(), t.dtype, version, counter)
        else:
            key = (t.data_ptr(), shape, t.stride(), t.dtype, version, counter)
        keep = version is not None and t.numel() > 0 and not cut.copies
        if keep and key in self._digests:
            return self._digests[key], shape
        self.coverage.bytes_hashed += t.numel() * t.element_size()
        if t.device.type == "cpu":
            digest = digest_host(t)
        else:
            self._pending.append(digest_device(t))
            digest = -len(self._pending)
        if keep:
            self._digests[key] = digest
        return digest, shape

    # -- modules ----------------------------------------------------------------------------

    def enter(self, frame: Frame, arguments: Any) -> None:
        """Note what goes into a module call (no dispatch mode sees the work done here)."""
        with _disable_current_modes():
            self._enter(frame, arguments)

    def leave(self, frame: Frame, output: Any) -> None:
        """Note what comes out of a module call."""
        with _disable_current_modes():
            self._leave(frame, output)

    def _enter(self, frame: Frame, arguments: Any) -> None:
        args, kwargs = arguments
        tensors = [(f"in.{i}", "", t) for i, t in enumerate(tensors_in(args, 2))]
        tensors += [(f"in.{k}", "", v) for k, v in kwargs.items() if isinstance(v, Tensor)]
        if not self.stack.frames[:-1]:
            self._keep.append(arguments)
            for slot, _, t in tensors:
                self._names.setdefault(_address(t), f"input:{slot[3:]}")
        anchor = Anchor(frame, len(self.ops), self._sigs(frame, "module", tensors))
        self.open.append(anchor)
        self.anchors.append(anchor)

    def _leave(self, frame: Frame, output: Any) -> None:
        tensors = [(f"out.{i}", "", t) for i, t in enumerate(tensors_in(output, 2))]
        anchor = self.open.pop()
        while anchor.frame != frame and self.open:
            anchor = self.open.pop()
        anchor.last_op = len(self.ops)
        for _, _, t in tensors:
            if self._storage(t) is None and _address(t) not in self._names and t.numel():
                self.coverage.hidden += 1
                self.coverage.notes.append(
                    f"{frame.path or 'model'} returns a tensor that no traced operator wrote"
                )
        anchor.outputs = self._sigs(frame, "module", tensors)
        if self.sink is not None and tensors:
            cut = self._cut((frame.path, "module", "out.0"), tuple(tensors[0][2].shape))
            if cut is not None:
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
        )


def renames(tensors: list[Any], results: list[Tensor]) -> bool:
    """Whether the results are other names for the inputs' memory (views and the like)."""
    if not results or not tensors:
        return False
    inputs = {_address(t) for _, _, t in tensors}
    return all(r.numel() and _address(r) in inputs for r in results)


def _resolve(sigs: tuple[Sig, ...], values: list[int]) -> tuple[Sig, ...]:
    return tuple(
        s._replace(digest=values[-s.digest - 1] & (1 << 64) - 1)
        if s.digest is not None and s.digest < 0
        else s
        for s in sigs
    )


def _address(t: Tensor) -> int:
    try:
        return t.untyped_storage().data_ptr() or id(t)
    except (RuntimeError, NotImplementedError):
        return id(t)


def _memory_order(t: Tensor) -> Tensor:
    """A transposed parameter as it lies in memory, so that hashing it needs no copy."""
    order = sorted(range(t.dim()), key=lambda axis: -t.stride(axis))
    return t.permute(order)


def storage_names(model: nn.Module) -> dict[int, str]:
    """Addresses of parameters and buffers with their names (``parameter:lm_head.weight``)."""
    out: dict[int, str] = {}
    for name, p in model.named_parameters():
        out.setdefault(_address(p), f"parameter:{name}")
    for name, b in model.named_buffers():
        out.setdefault(_address(b), f"buffer:{name}")
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                out.setdefault(_address(value), f"attribute:{path}.{name}".replace(":.", ":"))
    return out


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
) -> Trace:
    """Run ``call`` under the trace; ``inner`` are context managers that run below it."""
    recorder = Recorder(
        call.layouts(),
        row=row,
        solo=solo,
        whole=whole,
        watch_random=watch_random,
        names=storage_names(model),
        sink=sink,
    )
    with ExitStack() as contexts:
        for manager in inner:
            contexts.enter_context(manager)
        logits = _run(recorder, model, call)
    return recorder.finish(logits)


def _run(recorder: Recorder, model: nn.Module, call: ForwardCall) -> Tensor:
    with tracked(model, enter=recorder.enter, leave=recorder.leave) as stack:
        recorder.stack = stack
        with _entered(recorder):
            return call.run(model)


@contextmanager
def _entered(mode: TorchDispatchMode) -> Iterator[None]:
    with mode:
        yield
