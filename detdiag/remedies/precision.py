"""The two small matrices whose 16-bit scores tie: the language head and the MoE routers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from detdiag.errors import DetdiagError


@contextlib.contextmanager
def fp32_head(model: Any) -> Iterator[nn.Module]:
    """Compute logits in float32: 16-bit logits tie and near-tie often, float32 ones hardly ever.

    The head gets a float32 copy of its weight (vocabulary x width x 4 bytes; an embedding that
    shares it is left alone) and float32 inputs; logits are float32. Everything before the head
    keeps its rounding, so this removes ties and does not make two different hidden states equal.
    """
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None:
        head = getattr(model, "lm_head", None)
    if not isinstance(head, nn.Module):
        raise DetdiagError("the model has no language head that can be found")
    with _upcast(head, keep_output=True):
        yield head


@contextlib.contextmanager
def fp32_router(model: Any) -> Iterator[tuple[str, ...]]:
    """Choose experts on float32 scores; yields the paths of the routers found.

    Each router gets float32 copies of its parameters and float32 inputs; the weights it gives to
    experts go on in the model's own dtype. A router that rounds its own scores afterwards, or
    experts whose rows are equal, tie all the same.
    """
    paths = tuple(router_paths(model))
    if not paths:
        raise DetdiagError("the model has no router that can be found")
    with contextlib.ExitStack() as stack:
        for path in paths:
            stack.enter_context(_upcast(model.get_submodule(path), keep_output=False))
        yield paths


def router_paths(model: nn.Module) -> list[str]:
    """Paths of the modules that choose experts (one forward on 26 tokens tells)."""
    from detdiag.moe.discover import find_routers, may_have_experts

    if not may_have_experts(model):
        return []
    return [r.path for r in find_routers(model)]


@contextlib.contextmanager
def _upcast(module: nn.Module, *, keep_output: bool) -> Iterator[None]:
    """``module`` with float32 copies of its parameters; others that share them are left alone."""
    kept: list[tuple[nn.Module, str, nn.Parameter]] = []
    dtypes: set[torch.dtype] = set()
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if parameter.is_floating_point():
                dtypes.add(parameter.dtype)
                kept.append((owner, name, parameter))
    back = next(iter(dtypes), torch.float32)
    for owner, name, parameter in kept:
        owner._parameters[name] = nn.Parameter(parameter.detach().float(), requires_grad=False)
    handles = [
        module.register_forward_pre_hook(_floats_in, with_kwargs=True),
        module.register_forward_hook(lambda _m, _a, out: out if keep_output else _cast(out, back)),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for owner, name, parameter in kept:
            owner._parameters[name] = parameter


def _floats_in(_module: nn.Module, args: Any, kwargs: Any) -> Any:
    return _cast(args, torch.float32), _cast(kwargs, torch.float32)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {k: _cast(v, dtype) for k, v in value.items()}
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_cast(v, dtype) for v in value)
    return value
