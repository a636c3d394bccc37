"""Batch-invariant serving of the demo models, so that only a planted fault can differ.

Which CPU kernels give a row the same bits alone and in company depends on the processor: bfloat16
products do on some and do not on others, and attention over a padded row rarely does. Here every
product, router, expert and attention call sees one row's real tokens and nothing else, so a row's
bits are those of a solo run whatever its neighbours, its padding and the batch size are. That is
what batch-invariant kernels give a server, at a price only a model of this size can pay.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ATTENTION_NAME = "row_at_a_time"


@dataclass(frozen=True)
class Rows:
    """Which tokens of the running forward are real: ``queries`` (rows, new tokens) and ``keys``
    (rows, cached and new tokens), both boolean; ``keys`` is None where none is masked.
    ``alone``: one row without padding, which is already what every row is run as."""

    queries: Tensor
    keys: Tensor | None
    alone: bool = False

    @functools.cached_property
    def query_places(self) -> list[Any]:
        return [_places(row) for row in self.queries]

    @functools.cached_property
    def key_places(self) -> list[Any]:
        whole = slice(None)
        return [whole] * len(self.queries) if self.keys is None else [_places(k) for k in self.keys]


def _places(real: Tensor) -> Any:
    """An index of the real tokens: a slice where they are one run, as indexing by a mask is slow
    beside the arithmetic of models of this size."""
    found = real.nonzero().flatten().tolist()
    if found and found[-1] - found[0] + 1 == len(found):
        return slice(found[0], found[-1] + 1)
    return real


_ROWS: ContextVar[Rows | None] = ContextVar("rows", default=None)


class RowwiseModel(nn.Module):
    """Top of a model: notes which tokens are real while its forward runs."""

    def forward(self, input_ids: Any = None, attention_mask: Any = None, **kwargs: Any) -> Any:
        token = _ROWS.set(_real_tokens(input_ids, attention_mask))
        try:
            return super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        finally:
            _ROWS.reset(token)


def _real_tokens(input_ids: Tensor | None, mask: Tensor | None) -> Rows | None:
    if input_ids is None:
        return None
    single = input_ids.shape[0] == 1
    if mask is None or mask.dim() != 2:
        return Rows(torch.ones_like(input_ids, dtype=torch.bool), None, single)
    keys = mask.bool()
    return Rows(keys[:, -input_ids.shape[1] :], keys, single and bool(keys.all()))


class RowwiseLinear(nn.Linear):
    """A linear map that multiplies one row's real tokens at a time; padding gives zeros."""

    def forward(self, x: Tensor) -> Tensor:
        rows = _ROWS.get()
        if rows is None or rows.alone or x.dim() != 3:
            return super().forward(x)
        known = rows.queries.shape == x.shape[:2]
        out = x.new_zeros(*x.shape[:2], self.out_features)
        for row in range(x.shape[0]):
            real = rows.query_places[row] if known else slice(None)
            own = x[row : row + 1, real]
            if own.numel():
                out[row, real] = super().forward(own.clone())[0]
        return out


class RowwiseTokens(nn.Module):
    """A router or an expert network over (rows * tokens, width), fed one row at a time."""

    def forward(self, x: Tensor, *per_token: Tensor) -> Any:
        rows = _ROWS.get()
        if rows is None or rows.alone or rows.queries.numel() != x.shape[0]:
            return super().forward(x, *per_token)
        places = [r.nonzero().flatten() + i * len(r) for i, r in enumerate(rows.queries)]
        kept = [p for p in places if len(p)]
        parts = [super(RowwiseTokens, self).forward(x[p], *(t[p] for t in per_token)) for p in kept]
        where = torch.cat(kept)
        if isinstance(parts[0], Tensor):
            return _scattered(parts, where, x.shape[0])
        return tuple(_scattered(part, where, x.shape[0]) for part in zip(*parts, strict=True))


def _scattered(parts: Any, where: Tensor, tokens: int) -> Tensor:
    values = torch.cat(tuple(parts))
    out = values.new_zeros(tokens, *values.shape[1:])
    out[where] = values
    return out


def attend_by_row(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention in the shape that transformers calls it: query (rows, heads, queries,
    width), key and value (rows, kv heads, keys, width). Returns (rows, queries, heads, width)."""
    rows = _ROWS.get()
    if rows is not None and rows.alone:
        alone = _causal(query.contiguous(), key.contiguous(), value.contiguous(), scaling)
        return alone.transpose(1, 2).contiguous(), None
    out = torch.zeros_like(query)
    for row in range(query.shape[0]):
        real = slice(None) if rows is None else rows.query_places[row]
        seen = slice(None) if rows is None else rows.key_places[row]
        q = query[row : row + 1, :, real].contiguous()
        k = key[row : row + 1, :, seen].contiguous()
        v = value[row : row + 1, :, seen].contiguous()
        if q.shape[2]:
            out[row, :, real] = _causal(q, k, v, scaling)[0]
    return out.transpose(1, 2).contiguous(), None


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> Tensor:
    """The last query sees the last key."""
    new, old = q.shape[2], k.shape[2] - q.shape[2]
    if old == 0 or new == 1:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=new > 1, scale=scale, enable_gqa=True
        )
    mask = torch.ones(new, new + old, dtype=torch.bool, device=q.device).tril(old)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


@contextlib.contextmanager
def swapped(modules: Mapping[nn.Module, type[nn.Module]]) -> Iterator[None]:
    """Put a class in front of each module's own while open.

    Changing ``__class__`` leaves weights, hooks and attributes alone, and copies of the model
    made meanwhile keep the new behaviour.
    """
    before = {module: module.__class__ for module in modules}
    for module, front in modules.items():
        module.__class__ = _stacked(front, type(module))
    try:
        yield
    finally:
        for module, old in before.items():
            module.__class__ = old


def _stacked(front: Any, own: Any) -> Any:
    """``own`` with ``front`` before it; the forward keeps its signature, as generate reads it."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return super(made, self).forward(*args, **kwargs)

    made: Any = type(own.__name__, (front, own), {"forward": functools.wraps(own.forward)(forward)})
    return made


@contextlib.contextmanager
def batch_invariant(model: Any) -> Iterator[None]:
    """Run ``model`` (either demo model) batch-invariantly while open."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(ATTENTION_NAME, attend_by_row)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    before = model.config._attn_implementation
    with swapped(_rowwise_classes(model)):
        model.set_attn_implementation(ATTENTION_NAME)
        try:
            yield
        finally:
            model.set_attn_implementation(before)


def _rowwise_classes(model: nn.Module) -> dict[nn.Module, type[nn.Module]]:
    classes: dict[nn.Module, type[nn.Module]] = {model: RowwiseModel}
    for module in model.modules():
        if isinstance(module, nn.Linear):
            classes[module] = RowwiseLinear
        elif type(module).__name__ in ("Qwen3MoeTopKRouter", "Qwen3MoeExperts"):
            classes[module] = RowwiseTokens
    return classes
