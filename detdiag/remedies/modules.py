"""Remedies for modules that remember, draw or drop."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_PLAIN: Final = (bool, int, float, str, bytes, type(None), list, dict, set, tuple)


@contextlib.contextmanager
def stateless(model: nn.Module) -> Iterator[nn.Module]:
    """Every forward starts from the state that the modules had on entry.

    Buffers and plain attributes (tensors, numbers, lists, dictionaries) of all modules are put
    back before each call of ``model``; parameters are not touched. A key-value cache is handed
    to the forward from outside and stays. State in globals or closures is out of reach.
    """
    kept = [(module, _snapshot(module)) for module in model.modules()]

    def restore(*_: Any) -> None:
        for module, state in kept:
            _put_back(module, state)

    handle = model.register_forward_pre_hook(restore, prepend=True)
    try:
        yield model
    finally:
        handle.remove()


_HOUSEKEEPING: Final = frozenset(k for k in vars(nn.Module()) if k not in ("training",))


def _snapshot(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    buffers = {k: None if b is None else b.detach().clone() for k, b in module._buffers.items()}
    plain = {
        k: v.detach().clone() if isinstance(v, Tensor) else copy.copy(v)
        for k, v in vars(module).items()
        if k not in _HOUSEKEEPING and isinstance(v, (*_PLAIN, Tensor))
    }
    return buffers, plain


def _put_back(module: nn.Module, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    buffers, plain = state
    for name in [k for k in module._buffers if k not in buffers]:
        del module._buffers[name]
    for name, value in buffers.items():
        module._buffers[name] = None if value is None else value.clone()
    own = vars(module)
    for name in [k for k, v in own.items() if _grown(k, v, plain)]:
        del own[name]
    for name, value in plain.items():
        own[name] = value.clone() if isinstance(value, Tensor) else copy.copy(value)


def _grown(name: str, value: Any, plain: Mapping[str, Any]) -> bool:
    known = name in _HOUSEKEEPING or name in plain
    return not known and isinstance(value, (*_PLAIN, Tensor))


_DROPOUT: Final = frozenset(
    "dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout alpha_dropout_ feature_dropout "
    "feature_dropout_ feature_alpha_dropout feature_alpha_dropout_ native_dropout".split()
)
_ATTENTION: Final = "scaled_dot_product_attention"


class _NoDropout(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "native_dropout":
            x = args[0] if args else kwargs["input"]
            return x, torch.ones_like(x, dtype=torch.bool)
        if name in _DROPOUT:
            return args[0] if args else kwargs["input"]
        if name == _ATTENTION:
            kwargs["dropout_p"] = 0.0
            args = args[:4] + args[5:] if len(args) <= 5 else (*args[:4], 0.0, *args[5:])
            if len(args) > 4:
                kwargs.pop("dropout_p")
        return func(*args, **kwargs)


@contextlib.contextmanager
def no_dropout(model: nn.Module) -> Iterator[nn.Module]:
    """Evaluation mode, and every dropout call of torch returns its input, ``training=True`` or not.

    The modes of all modules are set back on exit. Noise that a module makes in another way
    (``torch.rand``) is not dropout: see :func:`no_jitter`.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with _NoDropout():
            yield model
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def no_jitter(model: nn.Module) -> Iterator[tuple[str, ...]]:
    """Router noise off: numeric attributes and settings whose name holds ``jitter`` or
    ``noise`` are 0 while this is open. Yields what was set."""
    with _numbers_set(model, _is_jitter, lambda _module, value: type(value)(0)) as names:
        yield names


@contextlib.contextmanager
def uncapped_experts(model: nn.Module) -> Iterator[tuple[str, ...]]:
    """No expert runs out of room: capacity factors are raised to the number of experts and
    capacities to the largest integer in use while this is open. Yields what was set.

    Names looked for: numeric attributes that hold ``capacity`` (Switch, GShard, Megatron and
    Tutel spell them so). A capacity written into the code as a number is out of reach.
    """
    with _numbers_set(model, _is_capacity, _roomy) as names:
        yield names


_EXPERT_COUNTS: Final = ("num_experts", "n_experts", "num_local_experts", "n_routed_experts")


def _is_jitter(name: str) -> bool:
    return "jitter" in name.lower() or "router_noise" in name.lower()


def _is_capacity(name: str) -> bool:
    return "capacity" in name.lower()


def _roomy(module: Any, value: float) -> float:
    if isinstance(value, int):
        return 2**31 - 1
    counts = (getattr(module, name, None) for name in _EXPERT_COUNTS)
    return float(max([c for c in counts if isinstance(c, int)], default=1024))


@contextlib.contextmanager
def _numbers_set(
    model: nn.Module, wanted: Callable[[str], bool], value_of: Callable[[Any, Any], Any]
) -> Iterator[tuple[str, ...]]:
    """Set matching numbers of the modules and of the model's config; own attributes come back,
    those of a class are shadowed on the instance and uncovered again."""
    owners: list[tuple[str, Any]] = list(model.named_modules())
    config = getattr(model, "config", None)
    if config is not None:
        owners.append(("config", config))
    undo: list[tuple[Any, str, bool, Any]] = []
    names = []
    for path, owner in owners:
        for name in sorted(_number_names(owner, wanted)):
            value = getattr(owner, name)
            undo.append((owner, name, name in vars(owner), value))
            object.__setattr__(owner, name, value_of(owner, value))
            names.append(f"{path}.{name}" if path else name)
    try:
        yield tuple(names)
    finally:
        for owner, name, own, value in reversed(undo):
            if own:
                object.__setattr__(owner, name, value)
            else:
                object.__delattr__(owner, name)


def _number_names(owner: Any, wanted: Callable[[str], bool]) -> set[str]:
    names = set(vars(owner))
    for kind in type(owner).__mro__:
        if kind not in (nn.Module, object):
            names |= set(vars(kind))
    found = set()
    for name in names:
        if name.startswith("_") or not wanted(name):
            continue
        value = getattr(owner, name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found.add(name)
    return found
