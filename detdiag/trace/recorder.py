"""The trace: a dispatch mode that records every operator of a forward with digests of its bits."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from detdiag.trace.align import WHOLE
from detdiag.trace.bits import digest_host
from detdiag.trace.calls import ForwardCall
from detdiag.trace.memory import address_of, renames, storage_names
from detdiag.trace.modules import Frame, tracked
from detdiag.trace.operands import Operands
from detdiag.trace.oplog import Anchor, Op, Sig, Trace
from detdiag.trace.schema import OpInfo, named_tensors, op_info, scalars, tensors_in

_WEIGHTS: weakref.WeakKeyDictionary[nn.Module, dict[Any, Any]] = weakref.WeakKeyDictionary()
_OUT = tuple(f"out.{i}" for i in range(7)) + ("out.more",)

Sink = Callable[[Frame, Tensor], None]
"""Takes the aligned first output of a module call."""


class Recorder(TorchDispatchMode):
    """Record operators and module calls; ``operands`` turns their tensors into signatures.

    ``watch_random`` reads the CPU generator's state around every operator; ``leaves`` are paths
    of modules without children, whose operators say all there is to say about them.
    """

    def __init__(
        self,
        operands: Operands,
        *,
        watch_random: bool = False,
        sink: Sink | None = None,
        leaves: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self.operands = operands
        self.watch_random = watch_random
        self.sink = sink
        self.leaves = leaves
        self.coverage = operands.coverage
        self.ops: list[Op] = []
        self.anchors: list[Anchor] = []
        self.open: list[Anchor] = []
        self.paused = False
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
                self.operands.wrote(out, -1)
            return out
        return self._traced(info, func, args, kwargs)

    def _traced(self, info: OpInfo, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        tensors = named_tensors(info, args, kwargs)
        frame = self.operands.stack.top
        before: tuple[Sig, ...] = ()
        if info.writes:
            before = self.operands.sigs(frame, info.name, tensors)
        watch = self.watch_random or info.seeded
        state = _random_state(tensors) if watch else None
        out = func(*args, **kwargs)
        results = [out] if isinstance(out, Tensor) else tensors_in(out)
        if not info.writes:
            if renames(tensors, results):
                self.coverage.views += 1
                return out
            before = self.operands.sigs(frame, info.name, tensors)
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
            self.operands.wrote(t, index)
            floating = floating or t.is_floating_point()
        outputs = () if info.empty else self.operands.sigs(frame, info.name, written)
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
        if len(self.operands.stack.frames) == 1:
            self._keep.append(arguments)
            for slot, _, t in _given(arguments):
                self.operands.names.setdefault(address_of(t), f"input:{slot[3:]}")
        leaf = frame.path in self.leaves
        inputs = () if leaf else self.operands.sigs(frame, "module", _given(arguments))
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
            anchor.inputs = self.operands.sigs(frame, "module", _given(held))
        for _, _, t in tensors:
            if (
                self.operands.storage(t) is None
                and address_of(t) not in self.operands.names
                and t.numel()
            ):
                self.coverage.hidden += 1
                self.coverage.notes.append(
                    f"{frame.path or 'model'} returns a tensor that no traced operator wrote"
                )
        anchor.outputs = self.operands.sigs(frame, "module", tensors)
        if self.sink is not None and tensors:
            shape = tuple(tensors[0][2].shape)
            cut = (
                WHOLE
                if self.operands.whole
                else self.operands.cut((frame.path, "module", "out.0"), shape)
            )
            if cut is not None:
                with _disable_current_modes():
                    self.sink(frame, cut.apply(tensors[0][2]))

    def finish(self, logits: Tensor) -> Trace:
        """Resolve digests that wait on a device (one copy) and close the trace."""
        storage = self.operands.storage(logits)
        resolve = self.operands.resolver()
        if resolve.values:
            for op in self.ops:
                op.inputs, op.outputs = resolve(op.inputs), resolve(op.outputs)
            for anchor in self.anchors:
                anchor.inputs, anchor.outputs = resolve(anchor.inputs), resolve(anchor.outputs)
        return Trace(
            ops=self.ops,
            anchors=self.anchors,
            output=storage.writer if storage else -1,
            logits=logits,
            layouts=self.operands.layouts,
            coverage=self.coverage,
            shapes=dict(self.operands.shapes),
            whole=self.operands.whole,
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
    operands = Operands(
        call.layouts(),
        row=row,
        solo=solo,
        whole=whole,
        names=storage_names(model),
        weights=_WEIGHTS.setdefault(model, {}),
        device_digests=device_digests,
    )
    leaves = frozenset(n for n, m in model.named_modules() if n and not m._modules)
    recorder = Recorder(operands, watch_random=watch_random, sink=sink, leaves=leaves)
    with ExitStack() as contexts:
        for manager in inner:
            contexts.enter_context(manager)
        logits = _run(recorder, model, call)
    return recorder.finish(logits)


def _run(recorder: Recorder, model: nn.Module, call: ForwardCall) -> Tensor:
    with tracked(model, enter=recorder.enter, leave=recorder.leave) as stack:
        recorder.operands.stack = stack
        recorder.operands.below = torch._C._len_torch_dispatch_stack() > 0
        with recorder:
            return call.run(model)
