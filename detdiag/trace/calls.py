"""A forward call as data: what goes in, which columns are real tokens, and how to run it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from detdiag.errors import DetdiagError

Columns = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape of one model step: ``n`` rows, ``length`` query and ``kv`` key columns.

    ``real`` and ``kv_real`` give per row the columns that hold real tokens; ``static`` is the
    allocated length of a preallocated cache (None where the cache grows).
    """

    n: int
    length: int
    kv: int
    real: tuple[Columns, ...]
    kv_real: tuple[Columns, ...]
    static: int | None = None

    def padded(self, row: int) -> bool:
        return len(self.real[row]) != self.length or len(self.kv_real[row]) != self.kv

    @property
    def any_padded(self) -> bool:
        return any(self.padded(row) for row in range(self.n))

    @property
    def divides(self) -> bool:
        """Whether running rows alone, without padding, gives another shape at all."""
        return self.n > 1 or self.any_padded


@dataclass(frozen=True)
class ForwardCall:
    """One forward, or a prefill with teacher-forced decode steps.

    ``kwargs`` (and ``args``) go to the model as they are. ``forced`` holds for each row the same
    number of token ids to decode one at a time after the prefill, with a cache of kind ``cache``
    (``dynamic`` or ``static``). ``invoke(model, call)`` may replace the run; it must return logits
    of shape (n, length + steps, vocab).
    """

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    args: tuple[Any, ...] = ()
    forced: tuple[tuple[int, ...], ...] = ()
    cache: str = "dynamic"
    invoke: Callable[[nn.Module, ForwardCall], Tensor] | None = None

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Sequence[int]],
        *,
        padding_side: str = "left",
        padded_length: int | None = None,
        pad_id: int = 0,
        position_ids: bool = True,
        device: str | torch.device = "cpu",
        forced: Sequence[Sequence[int]] = (),
        cache: str = "dynamic",
    ) -> ForwardCall:
        """Rows of token ids, padded to one length; mask only where something is padded.

        ``position_ids`` derives positions as ``generate`` does (cumulative sum of the mask minus
        one); without it the model counts columns.
        """
        length = max([*(len(r) for r in rows), padded_length or 0])
        ids = torch.full((len(rows), length), pad_id, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            start = length - len(row) if padding_side == "left" else 0
            ids[i, start : start + len(row)] = torch.tensor(list(row), dtype=torch.int64)
            mask[i, start : start + len(row)] = 1
        kwargs: dict[str, Any] = {"input_ids": ids.to(device)}
        if not bool(mask.all()):
            kwargs["attention_mask"] = mask.to(device)
            if position_ids:
                kwargs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0).to(device)
        return cls(kwargs=kwargs, forced=tuple(map(tuple, forced)), cache=cache)

    @property
    def lead(self) -> Tensor:
        """The tensor whose first two sizes are rows and columns."""
        for key in ("input_ids", "inputs_embeds"):
            if isinstance(self.kwargs.get(key), Tensor):
                return self.kwargs[key]
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, Tensor):
                return value
        raise DetdiagError("a forward call needs at least one tensor")

    @property
    def rows(self) -> int:
        return int(self.lead.shape[0])

    def real_columns(self, row: int) -> Columns:
        """Columns of ``row`` in the returned logits that belong to real tokens."""
        length = int(self.lead.shape[1]) if self.lead.dim() > 1 else 1
        steps = len(self.forced[0]) if self.forced else 0
        return (*self.layouts()[0].real[row], *range(length, length + steps))

    def layouts(self) -> tuple[Layout, ...]:
        """The layout of each model step: the prefill, then one for each forced token."""
        lead = self.lead
        n, length = int(lead.shape[0]), int(lead.shape[1]) if lead.dim() > 1 else 1
        real = _real_columns(self.kwargs.get("attention_mask"), n, length)
        steps = len(self.forced[0]) if self.forced else 0
        static = length + steps if steps and self.cache == "static" else None
        out = [Layout(n, length, length, real, real, static)]
        for step in range(steps):
            kv_real = tuple((*r, *range(length, length + step + 1)) for r in real)
            out.append(Layout(n, 1, length + step + 1, ((0,),) * n, kv_real, static))
        return tuple(out)

    def repeated(self, row: int) -> ForwardCall:
        """The same shapes with every row replaced by ``row`` (a batch of copies)."""
        index = [row] * self.rows
        forced = tuple(self.forced[i] for i in index) if self.forced else ()
        kwargs = {k: _take(v, index, self.rows) for k, v in self.kwargs.items()}
        args = tuple(_take(v, index, self.rows) for v in self.args)
        return replace(self, kwargs=kwargs, args=args, forced=forced)

    def run(self, model: nn.Module) -> Tensor:
        """Logits (n, length + steps, vocab) in the model's own dtype, without gradients."""
        with eager_inference():
            out = self.invoke(model, self) if self.invoke else _invoke(model, self)
        return out.detach()

    def row_logits(self, logits: Tensor, row: int) -> Tensor:
        """Logits of the real tokens of ``row``: (tokens, vocab)."""
        if logits.dim() < 3:
            return logits[row : row + 1]
        columns = self.real_columns(row)
        if logits.shape[1] != int(self.lead.shape[1]) + (len(self.forced[0]) if self.forced else 0):
            return logits[row]  # the call kept the last columns only
        return logits[row, list(columns)]


def _real_columns(mask: Any, n: int, length: int) -> tuple[Columns, ...]:
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.shape[1] < length:
        return (tuple(range(length)),) * n
    host = mask[:, :length].to("cpu")
    return tuple(tuple(host[i].nonzero().flatten().tolist()) for i in range(n))


def _take(value: Any, index: list[int], n: int) -> Any:
    if isinstance(value, Tensor) and value.dim() and value.shape[0] == n:
        return value[index]
    return value


def logits_of(output: Any) -> Tensor:
    """The logits of a model output: ``.logits``, a tensor, or the first tensor found."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "last_hidden_state"):
        value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    if isinstance(output, (tuple, list)):
        for item in output:
            if isinstance(item, Tensor):
                return item
    raise DetdiagError(f"the model returned no logits ({type(output).__name__})")


def _invoke(model: nn.Module, call: ForwardCall) -> Tensor:
    if not call.forced:
        return logits_of(model(*call.args, **call.kwargs))
    steps = len(call.forced[0])
    ids = call.kwargs["input_ids"]
    mask = call.kwargs.get("attention_mask", torch.ones_like(ids))
    cache = _new_cache(model, call, ids.shape[1] + steps)
    first = {**call.kwargs, "past_key_values": cache, "use_cache": True}
    parts = [logits_of(model(**first))]
    for step in range(steps):
        mask = torch.cat([mask, mask.new_ones(mask.shape[0], 1)], dim=1)
        tokens = torch.tensor([[r[step]] for r in call.forced], device=ids.device)
        kwargs: dict[str, Any] = {"input_ids": tokens, "past_key_values": cache, "use_cache": True}
        if "attention_mask" in call.kwargs:
            kwargs["attention_mask"] = mask
        if "position_ids" in call.kwargs:
            kwargs["position_ids"] = (mask.sum(-1, keepdim=True) - 1).clamp(min=0)
        parts.append(logits_of(model(**kwargs)))
    return torch.cat(parts, dim=1)


def _new_cache(model: nn.Module, call: ForwardCall, length: int) -> Any:
    from transformers import DynamicCache, StaticCache

    config = getattr(model, "config", None)
    if call.cache == "static":
        return StaticCache(config=config, max_cache_len=length)
    return DynamicCache(config=config)


@contextlib.contextmanager
def eager_inference() -> Iterator[None]:
    """No gradients, no compilation, and composite operators kept whole.

    Below the autograd keys ``aten.linear`` reaches a dispatch mode as one operator. Unlike
    inference mode this leaves ordinary tensors behind, so state that a module keeps stays usable.
    """
    refuse_capture()
    stance = getattr(torch.compiler, "set_stance", None)
    eager = stance("force_eager") if stance is not None else contextlib.nullcontext()
    with torch.no_grad(), eager, torch._C._AutoDispatchBelowAutograd():
        yield


def refuse_capture() -> None:
    """Raise where a CUDA graph is being captured: a replay runs no Python to look at."""
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        raise DetdiagError(
            "cannot trace while a CUDA graph is being captured",
            tip="turn CUDA graphs off and compare final logits with and without them",
        )


def is_compiled(model: nn.Module) -> bool:
    """Whether any module is compiled by ``torch.compile`` (the trace then runs it eagerly)."""
    return any(
        type(m).__name__ == "OptimizedModule" or getattr(m, "_compiled_call_impl", None)
        for m in model.modules()
    )
