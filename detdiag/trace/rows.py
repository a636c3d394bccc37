"""Run operators one row at a time: the intervention, and batch-invariant inference for users.

Each row is computed at the shape it would have alone: its own slice of the batch, and of that the
real tokens only. Padding positions get zeros, which nothing reads.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from detdiag.trace.align import Pick, pick_of
from detdiag.trace.calls import ForwardCall, Layout, eager_inference
from detdiag.trace.modules import Frame, ModuleStack, tracked
from detdiag.trace.schema import op_info, tensors_in

ROW_OPS: Final = frozenset(
    "aten.linear aten.matmul aten.mm aten.addmm aten.bmm aten.baddbmm aten.mv aten.addmv "
    "aten.scaled_dot_product_attention aten.softmax aten._softmax aten.log_softmax aten.mean "
    "aten.sum aten.var aten.rms_norm aten.layer_norm aten.native_layer_norm aten.group_norm "
    "aten.linalg_vector_norm aten.norm aten.logsumexp aten.conv1d aten.convolution "
    "quantized.linear_dynamic quantized.linear_relu_dynamic onednn.qlinear_pointwise "
    "aten._weight_int8pack_mm aten._scaled_mm".split()
)
"""Operators whose arithmetic may depend on the shape of the batch; elementwise ones do not."""

SDPA: Final = "aten.scaled_dot_product_attention"
_GROUPED: Final = frozenset({"aten.bmm", "aten.baddbmm"})
Wanted = Callable[[str, Frame], bool]


@dataclass
class RowStats:
    """``calls`` operators run row by row; ``whole`` wanted ones that could not be split."""

    calls: Counter[str] = field(default_factory=Counter)
    whole: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Split:
    """How one argument is split: ``kind`` shared, batch, fold, group, or one (the same for all
    rows but for its token axes); token axes to cut."""

    kind: str
    axes: tuple[tuple[int, bool], ...] = ()
    """(axis after the batch axis is restored, whether it counts keys rather than queries)."""


class RowWise(TorchDispatchMode):
    """Run the operators that ``wanted(name, frame)`` selects row by row."""

    def __init__(
        self,
        wanted: Wanted,
        layout: Callable[[], Layout | None],
        stack: ModuleStack,
        stats: RowStats,
        constants: Collection[int],
        keep_mask: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self.keep_mask = keep_mask
        self.wanted = wanted
        self.layout = layout
        self.stack = stack
        self.stats = stats
        self.constants = constants
        self._fits: dict[tuple[Any, ...], tuple[tuple[int, ...], ...]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        info = op_info(func)
        layout = self.layout()
        if layout is None or layout.n < 2 or not self.wanted(info.name, self.stack.top):
            return func(*args, **kwargs)
        out = None
        if not info.writes:
            with contextlib.suppress(RuntimeError, IndexError):  # shapes that do not split
                out = self._rows(func, info.name, info.arguments, args, kwargs)
        if out is None:
            self.stats.whole[info.name] += 1
            return func(*args, **kwargs)
        self.stats.calls[info.name] += 1
        return out

    def _rows(
        self, func: Any, name: str, arguments: tuple[str, ...], args: Any, kwargs: Any
    ) -> Any:
        layout = self.layout()
        assert layout is not None
        names = [*(arguments[i] if i < len(arguments) else str(i) for i in range(len(args)))]
        values = [*zip(names, args, strict=True), *kwargs.items()]
        splits = {k: self._split(name, k, v, layout) for k, v in values if isinstance(v, Tensor)}
        lead = next((k for k, s in splits.items() if s.kind in ("batch", "fold", "group")), None)
        if lead is None:
            return None
        tensor = dict(values)[lead]
        if not tensor.is_floating_point():
            return None
        padded = any(layout.padded(r) for r in range(layout.n))
        alone = name == SDPA and padded and not self.keep_mask() and layout.static is None
        parts = []
        for row in range(layout.n):
            cut = {k: _cut(v, splits[k], layout, row) if k in splits else v for k, v in values}
            parts.append(_call(func, names, cut, layout, alone))
        out = _join(parts, _output_split(name, lead, splits), layout, tensor)
        shapes = self._whole_shapes(func, args, kwargs)
        return out if tuple(tuple(t.shape) for t in tensors_in(out)) == shapes else None

    def _whole_shapes(self, func: Any, args: Any, kwargs: Any) -> tuple[tuple[int, ...], ...]:
        """Shapes of the results at the batch's shape, from one real call for each signature."""
        key = (func, *(tuple(t.shape) for t in tensors_in((args, kwargs))), repr(_plain(args)))
        if key not in self._fits:
            whole = tensors_in(func(*args, **kwargs))
            self._fits[key] = tuple(tuple(t.shape) for t in whole)
        return self._fits[key]

    def _split(self, op: str, name: str, t: Tensor, layout: Layout) -> _Split:
        if t.dim() == 0 or t.untyped_storage().data_ptr() in self.constants:
            return _Split("shared")
        n, size = layout.n, int(t.shape[0])
        if size == n:
            return _Split("batch", _token_axes(op, name, tuple(t.shape), layout))
        if size == n * layout.length and t.dim() <= 2:
            return _Split("fold", ((1, False),))
        if op in _GROUPED and size % n == 0:
            return _Split("group")
        if size == 1 and t.dim() > 2:
            return _Split("one", _token_axes(op, name, tuple(t.shape), layout))
        return _Split("shared")


def _plain(args: tuple[Any, ...]) -> list[Any]:
    simple = (int, float, str, type(None))
    return [a if isinstance(a, simple) else id(a) for a in args if not isinstance(a, Tensor)]


def _token_axes(
    op: str, name: str, shape: tuple[int, ...], layout: Layout
) -> tuple[tuple[int, bool], ...]:
    """Token axes of an operand of shape (n, ...), most usual places only."""
    out: list[tuple[int, bool]] = []
    first = 2 if len(shape) == 4 else 1
    if len(shape) > first and (kind := _token_kind(shape[first], layout)) is not None:
        out.append((first, kind or name in ("key", "value")))
    last = len(shape) - 1
    square = (
        op in ("aten.softmax", "aten._softmax", "aten.matmul")
        and len(shape) == 4
        and shape[2] == layout.length
    )
    wide = "mask" in name or name == "other" or (square and name in ("self", "tensor1"))
    if len(shape) == 4 and wide and _token_kind(shape[last], layout) is not None:
        out.append((last, True))
    return tuple(out)


def _token_kind(size: int, layout: Layout) -> bool | None:
    if size == layout.length and size > 1:
        return False
    if size == layout.static and not any(layout.padded(r) for r in range(layout.n)):
        return None  # the run alone has the same unused columns
    return True if size in (layout.kv, layout.static) and size > 1 else None


def _pick(layout: Layout, row: int, keys: bool, size: int) -> Pick:
    return pick_of(layout.kv_real[row] if keys else layout.real[row], size)


def _cut(t: Tensor, split: _Split, layout: Layout, row: int) -> Tensor:
    if split.kind == "shared":
        return t
    if split.kind == "group":
        size = t.shape[0] // layout.n
        return t[row * size : (row + 1) * size]
    if split.kind == "fold":
        t = t.reshape(layout.n, layout.length, *t.shape[1:])
    part = t if split.kind == "one" else t[row : row + 1]
    for axis, keys in split.axes:
        part = _take(part, axis, _pick(layout, row, keys, int(t.shape[axis])))
    return part.flatten(0, 1) if split.kind == "fold" else part


def _take(t: Tensor, axis: int, pick: Pick) -> Tensor:
    if isinstance(pick, slice):
        return t.narrow(axis, pick.start, pick.stop - pick.start)
    if pick is not None:
        return t.index_select(axis, torch.tensor(pick, device=t.device))
    return t


def _call(func: Any, names: list[str], cut: dict[str, Any], layout: Layout, attention: bool) -> Any:
    packed = _as_alone(cut, layout) if attention else None
    out = func(*(cut[k] for k in names), **{k: v for k, v in cut.items() if k not in names})
    return out if packed is None else out.reshape(packed)


def _output_split(name: str, lead: str, splits: dict[str, _Split]) -> _Split:
    """Token axes of the result: those of the leading operand, columns from the other factor."""
    split = splits[lead]
    if name != "aten.matmul" or "other" not in splits:
        return split
    axes = tuple(a for a in split.axes if a[0] != 3)
    return _Split(split.kind, axes + tuple(a for a in splits["other"].axes if a[0] == 3))


def _as_alone(cut: dict[str, Any], layout: Layout) -> tuple[int, ...] | None:
    """Ask attention as a run without padding would: no mask where it hides the future only.

    transformers 5 packs query heads of a masked decode step into the query axis (``pack_gqa``)
    and passes ``enable_gqa`` where there is no mask; the packed output shape is returned then.
    """
    mask = cut.get("attn_mask")
    if not isinstance(mask, Tensor):
        return None
    seen = mask if mask.dtype == torch.bool else mask == 0
    q = cut["query"]
    packed = q.shape if layout.length == 1 and q.shape[2] > 1 else None
    if packed is not None and bool(seen.all()):
        cut["query"] = q.reshape(q.shape[0], -1, 1, q.shape[3])
        cut["attn_mask"] = None
        cut["enable_gqa"] = True
        return (*packed[:3], cut["value"].shape[-1])
    query, keys = seen.shape[-2:]
    causal = torch.ones(query, keys, dtype=torch.bool, device=mask.device)
    if query > 1:
        causal = causal.tril(keys - query)
    if query in (1, keys) and bool((seen == causal).all()):
        cut["attn_mask"] = None
        cut["is_causal"] = query > 1
    return None


def _join(parts: list[Any], split: _Split, layout: Layout, lead: Tensor) -> Any:
    if isinstance(parts[0], (tuple, list)):
        columns = [_join(list(c), split, layout, lead) for c in zip(*parts, strict=True)]
        return None if any(c is None for c in columns) else type(parts[0])(columns)
    if not isinstance(parts[0], Tensor) or parts[0].dim() == 0:
        return None
    if split.kind == "group" or not any(layout.padded(r) for r in range(layout.n)):
        whole = torch.cat(parts, dim=0)
        return whole if whole.shape[0] == lead.shape[0] else None
    return _scatter(parts, split, layout, lead)


def _scatter(parts: list[Tensor], split: _Split, layout: Layout, lead: Tensor) -> Tensor | None:
    """Rows of real tokens back into the padded tensor, zeros elsewhere."""
    if split.kind == "fold":
        parts = [p.unflatten(0, (1, -1)) for p in parts]
    axes = [a for a, _ in split.axes if a < parts[0].dim()]
    keys = dict(split.axes)
    shape = list(parts[0].shape)
    shape[0] = layout.n
    for axis in axes:
        shape[axis] = _full(layout, keys[axis], split, lead, axis)
    whole = parts[0].new_zeros(shape)
    for row, part in enumerate(parts):
        if part.shape[0] != 1:
            return None
        target = whole[row : row + 1]
        picks = [(a, _pick(layout, row, keys[a], shape[a])) for a in axes]
        _put(target, part, picks)
    return whole.flatten(0, 1) if split.kind == "fold" else whole


def _full(layout: Layout, keys: bool, split: _Split, lead: Tensor, axis: int) -> int:
    if split.kind == "fold":
        return layout.length
    size = int(lead.shape[axis])
    if _token_kind(size, layout) is not None:
        return size
    return (layout.static or layout.kv) if keys else layout.length


def _put(target: Tensor, part: Tensor, picks: list[tuple[int, Pick]]) -> None:
    index: list[Any] = [slice(None)] * target.dim()
    for axis, pick in picks:
        if isinstance(pick, slice):
            index[axis] = pick
        elif pick is not None:
            index[axis] = torch.tensor(pick, device=target.device)
    target[tuple(index)] = part


def module_rows(forward: Callable[..., Any], layout: Layout, args: Any, kwargs: Any) -> Any:
    """Call a module's ``forward`` once for each row with that row's real tokens and join the
    results; None where the arguments or results cannot be split."""
    values = {**dict(enumerate(args)), **kwargs}
    splits = {k: _module_split(v, layout) for k, v in values.items() if isinstance(v, Tensor)}
    lead = next((k for k, s in splits.items() if s.kind != "shared"), None)
    if lead is None:
        return None
    parts = []
    for row in range(layout.n):
        cut = {k: _cut(v, splits[k], layout, row) if k in splits else v for k, v in values.items()}
        positional = [cut[i] for i in range(len(args))]
        parts.append(forward(*positional, **{k: v for k, v in cut.items() if isinstance(k, str)}))
    return _join(parts, splits[lead], layout, values[lead])


def _module_split(t: Tensor, layout: Layout) -> _Split:
    if t.dim() > 1 and t.shape[0] == layout.n:
        token = t.dim() > 2 and t.shape[1] == layout.length
        return _Split("batch", ((1, False),) if token else ())
    if t.dim() and t.shape[0] == layout.n * layout.length:
        return _Split("fold", ((1, False),))
    return _Split("shared")


def constants_of(model: nn.Module) -> frozenset[int]:
    """Addresses of parameters and buffers: never split."""
    tensors = [*model.parameters(), *model.buffers()]
    return frozenset(t.untyped_storage().data_ptr() for t in tensors)


@contextmanager
def row_by_row(
    model: nn.Module,
    call: ForwardCall,
    wanted: Wanted,
    stats: RowStats | None = None,
    *,
    keep_mask: Collection[int] = (),
) -> Iterator[RowStats]:
    """Run the wanted operators of ``call`` on ``model`` row by row while the context is open.

    Attention drops a mask that hides nothing of a row, as the row alone would, except in the
    steps of ``keep_mask`` (where the run alone has one too).
    """
    stats = stats or RowStats()
    layouts = call.layouts()
    with tracked(model) as stack:
        mode = RowWise(
            wanted,
            lambda: layouts[min(stack.step, len(layouts) - 1)],
            stack,
            stats,
            constants_of(model),
            lambda: stack.step in keep_mask,
        )
        with mode:
            yield stats


@contextmanager
def row_invariant(
    model: nn.Module, ops: Collection[str] = ROW_OPS, *, stats: RowStats | None = None
) -> Iterator[RowStats]:
    """Batch-invariant inference: each row gets the bits it would get alone.

    While the context is open, forwards and ``generate`` of ``model`` run the operators in ``ops``
    one row at a time, on real tokens only. It works on any device, without gradients, and costs
    about what running the rows one after the other would. Raises :class:`DetdiagError` while a
    CUDA graph is captured.
    """
    stats = stats or RowStats()
    current: list[Layout | None] = [None]

    def enter(frame: Frame, arguments: Any) -> None:
        if frame.path == "":
            current[0] = _layout_of(*arguments)

    if torch.is_grad_enabled() and any(p.requires_grad for p in model.parameters()):
        with torch.no_grad(), row_invariant(model, ops, stats=stats) as inner:
            yield inner
        return
    with eager_inference(), tracked(model, enter=enter) as stack:
        mode = RowWise(
            lambda name, _: name in ops, lambda: current[0], stack, stats, constants_of(model)
        )
        with mode:
            yield stats


def _layout_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layout | None:
    """Layout of a model's own forward arguments, a growing cache included."""
    lead = kwargs.get("input_ids")
    if lead is None:
        lead = kwargs.get("inputs_embeds")
    if lead is None:
        lead = next((a for a in args if isinstance(a, Tensor)), None)
    if lead is None or lead.dim() < 2:
        return None
    n, length = int(lead.shape[0]), int(lead.shape[1])
    mask = kwargs.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return _unpadded(n, length, kwargs)
    kv = int(mask.shape[1])
    host = mask.to("cpu")
    kv_real = tuple(tuple(host[i].nonzero().flatten().tolist()) for i in range(n))
    offset = kv - length
    real = tuple(tuple(c - offset for c in row if c >= offset) for row in kv_real)
    return Layout(n, length, kv, real, kv_real)


def _unpadded(n: int, length: int, kwargs: dict[str, Any]) -> Layout:
    cache = kwargs.get("past_key_values")
    if cache is None:
        cache = kwargs.get("cache")
    length_of = getattr(cache, "get_seq_length", None)
    past = int(length_of()) if length_of is not None else 0
    kv = past + length
    return Layout(n, length, kv, (tuple(range(length)),) * n, (tuple(range(kv)),) * n)
