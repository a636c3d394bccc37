"""Run one routed block again on the inputs that it had: alone, repeated, or in copies.

Equal input bits by construction, whatever the rest of the model did before; so a difference
between two replays is the block's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from detdiag.moe.capture import BlockCall, capture
from detdiag.moe.decisions import Decisions, decisions


def replay(
    model: nn.Module,
    call: BlockCall,
    change: Callable[[Any], Any] | None = None,
    *,
    watch_random: bool = False,
) -> BlockCall:
    """The block on ``call``'s inputs, each passed through ``change``; the call as captured."""
    block = model.get_submodule(call.router.block_path)
    args = tuple(_mapped(a, change) for a in call.args)
    kwargs = {k: _mapped(v, change) for k, v in call.kwargs.items()}
    with (
        torch.no_grad(),
        capture(model, [call.router], keep=True, watch_random=watch_random) as made,
    ):
        block(*args, **kwargs)
    return made.calls[-1]


def changed_inputs(
    call: BlockCall, change: Callable[[Any], Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of the call's inputs, every tensor passed through ``change``."""
    args = tuple(_mapped(a, change) for a in call.args)
    return args, {k: _mapped(v, change) for k, v in call.kwargs.items()}


def _mapped(value: Any, change: Callable[[Any], Any] | None) -> Any:
    if isinstance(value, Tensor):
        # A block may write into its input.
        return value.clone() if change is None else change(value).clone()
    if type(value) in (tuple, list):
        return type(value)(_mapped(v, change) for v in value)
    return value


def one_row(row: int, rows: int, width: int) -> Callable[[Tensor], Tensor]:
    """Cut ``row`` of ``rows`` out of a batched tensor: (rows, ...) or (rows * width, ...)."""

    def cut(tensor: Tensor) -> Tensor:
        if tensor.dim() == 0:
            return tensor
        if tensor.shape[0] == rows:
            return tensor[row : row + 1]
        if tensor.shape[0] == rows * width:
            return tensor[row * width : (row + 1) * width]
        return tensor

    return cut


def copies(row: int, rows: int, width: int) -> Callable[[Tensor], Tensor]:
    """Fill the whole batch with ``row``; shapes stay as they are."""
    cut = one_row(row, rows, width)

    def fill(tensor: Tensor) -> Tensor:
        part = cut(tensor)
        if part.shape == tensor.shape:
            return tensor
        return part.repeat(rows, *[1] * (tensor.dim() - 1))

    return fill


def with_row(row: int, rows: int, width: int, part: Tensor) -> Callable[[Tensor], Tensor]:
    """Put ``part`` (one row of the block's first argument) in place of ``row``."""

    def put(tensor: Tensor) -> Tensor:
        cut = one_row(row, rows, width)(tensor)
        if cut.numel() != part.numel() or cut.dtype != part.dtype:
            return tensor
        out = tensor.clone()
        start = row if tensor.shape[0] == rows else row * width
        out[start : start + cut.shape[0]] = part.reshape(cut.shape)
        return out

    return put


def output_of(call: BlockCall) -> Tensor:
    """The block's hidden output as (tokens, hidden): the first tensor that it returned."""
    return flat(first_tensor(call.output))


def input_of(call: BlockCall) -> Tensor:
    """The block's hidden input as (tokens, hidden): the first floating tensor it was given."""
    for value in (*call.args, *call.kwargs.values()):
        if isinstance(value, Tensor) and value.is_floating_point():
            return flat(value)
    raise ValueError(f"{call.router.block_path} got no hidden states")


def flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


def first_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    for item in value:
        if isinstance(item, Tensor):
            return item
    raise ValueError("the block returned no tensor")


def with_rows(result: Any, rows: slice, mask: Tensor, replacement: Tensor) -> Any:
    """``result`` with the masked tokens of ``rows`` taken from ``replacement`` (tokens, hidden)."""
    tensor = first_tensor(result)
    changed = flat(tensor).clone()
    part = changed[rows]
    part[mask] = replacement[mask].to(part.dtype)
    changed[rows] = part
    changed = changed.reshape(tensor.shape)
    if isinstance(result, Tensor):
        return changed
    swapped = [changed if item is tensor else item for item in result]
    return type(result)(swapped) if type(result) in (tuple, list) else type(result)(*swapped)


def row_view(call: BlockCall, row: int, width: int) -> tuple[Decisions, Tensor]:
    """Decisions and output of the tokens of one row."""
    tokens = slice(row * width, (row + 1) * width)
    return decisions(call).rows(tokens), output_of(call)[tokens]
