"""Run operators one row at a time: the intervention that :mod:`detdiag.remedies` offers to users.

Each row is computed at the shape it would have alone: its own slice of the batch, and of that the
real tokens only. Padding positions keep what the whole batch computed there: no real token reads
them, but they must stay finite (zero times infinity in a masked attention is not a number).
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

from detdiag.trace.calls import ForwardCall, Layout
from detdiag.trace.modules import Frame, ModuleStack, tracked
from detdiag.trace.schema import op_info, tensors_in
from detdiag.trace.splitting import Split, cut_row, join_rows, output_split, token_axes

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
        if layout is None or not layout.divides or not self.wanted(info.name, self.stack.top):
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
        alone = name == SDPA and layout.any_padded and not self.keep_mask() and not layout.static
        whole = func(*args, **kwargs) if layout.any_padded else None
        parts = []
        for row in range(layout.n):
            cut = {k: cut_row(v, splits[k], layout, row) if k in splits else v for k, v in values}
            parts.append(_call(func, names, cut, layout, alone))
        out = join_rows(parts, output_split(name, lead, splits), layout, tensor, whole)
        shapes = self._whole_shapes(func, args, kwargs) if whole is None else _shapes(whole)
        return out if _shapes(out) == shapes else None

    def _whole_shapes(self, func: Any, args: Any, kwargs: Any) -> tuple[tuple[int, ...], ...]:
        """Shapes of the results at the batch's shape, from one real call for each signature."""
        key = (func, *(tuple(t.shape) for t in tensors_in((args, kwargs))), repr(_plain(args)))
        if key not in self._fits:
            self._fits[key] = _shapes(func(*args, **kwargs))
        return self._fits[key]

    def _split(self, op: str, name: str, t: Tensor, layout: Layout) -> Split:
        if t.dim() == 0 or t.untyped_storage().data_ptr() in self.constants:
            return Split("shared")
        n, size = layout.n, int(t.shape[0])
        if size == n:
            return Split("batch", token_axes(op, name, tuple(t.shape), layout))
        if size == n * layout.length and t.dim() <= 2:
            return Split("fold", ((1, False),))
        if op in _GROUPED and size % n == 0:
            return Split("group")
        if size == 1 and t.dim() > 2:
            return Split("one", token_axes(op, name, tuple(t.shape), layout))
        return Split("shared")


def _shapes(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(t.shape) for t in tensors_in(value))


def _plain(args: tuple[Any, ...]) -> list[Any]:
    simple = (int, float, str, type(None))
    return [a if isinstance(a, simple) else id(a) for a in args if not isinstance(a, Tensor)]


def _call(func: Any, names: list[str], cut: dict[str, Any], layout: Layout, attention: bool) -> Any:
    packed = _as_alone(cut, layout) if attention else None
    out = func(*(cut[k] for k in names), **{k: v for k, v in cut.items() if k not in names})
    return out if packed is None else out.reshape(packed)


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


def layout_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Layout | None:
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
