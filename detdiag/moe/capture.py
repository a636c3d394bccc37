"""Record what every routed block does during a forward, and change it on request.

A block's ``forward`` is wrapped on the instance and restored on exit; nothing else is touched,
and the wrapped call returns the block's own output unless a graft or an override says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from detdiag.moe.discover import Router
from detdiag.moe.selection import Override, Selection, SelectionLog


@dataclass(slots=True)
class BlockCall:
    """One call of one routed block.

    ``selection`` and ``logits`` are the last choosing call over the experts and the projection
    before it, ``ids`` and ``weights`` what the experts were called with (None: they take no such
    tensors). ``args``, ``kwargs`` and ``output`` are kept only on request. ``random`` says that
    a generator moved during the call (None: not watched).
    """

    router: Router
    selection: Selection | None = None
    logits: Tensor | None = None
    ids: Tensor | None = None
    weights: Tensor | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    output: Any = None
    random: bool | None = None
    again: Callable[..., BlockCall] | None = None
    """While a graft decides: runs the block on other inputs and returns that call."""


Graft = Callable[[BlockCall, Any], Any]
"""Gets the call and the block's output, returns the output to go on with."""


@dataclass(slots=True)
class Capture:
    """Calls in the order in which they happened."""

    calls: list[BlockCall] = field(default_factory=list)

    def of(self, router: Router) -> list[BlockCall]:
        return [c for c in self.calls if c.router.index == router.index]


@contextmanager
def capture(
    model: nn.Module,
    routers: Sequence[Router],
    *,
    keep: bool = False,
    watch_random: bool = False,
    graft: Graft | None = None,
    override: Callable[[Router], Override | None] | None = None,
) -> Iterator[Capture]:
    """Trace ``routers`` of ``model`` while the context is open.

    ``keep`` stores each block's inputs (copied: blocks may write into them) and output.
    """
    recorded = Capture()
    with ExitStack() as undo:
        for router in routers:
            _watch(
                undo,
                model,
                router,
                recorded,
                _Options(keep, watch_random, graft, override(router) if override else None),
            )
        yield recorded


@dataclass(frozen=True, slots=True)
class _Options:
    keep: bool
    watch_random: bool
    graft: Graft | None
    override: Override | None


def _watch(
    undo: ExitStack, model: nn.Module, router: Router, recorded: Capture, options: _Options
) -> None:
    block = model.get_submodule(router.block_path)
    chooser = model.get_submodule(router.path)
    current: list[BlockCall] = []

    def choose(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        log = SelectionLog(router.experts, override=options.override)
        with log:
            result = original(*args, **kwargs)
        if current and log.selections:
            current[-1].selection = log.selections[-1]
        if current:
            current[-1].logits = log.logits
        return result

    def observe(
        original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], keep: bool
    ) -> tuple[BlockCall, Any]:
        call = BlockCall(router)
        if keep:
            call.args = tuple(_copied(a) for a in args)
            call.kwargs = {k: _copied(v) for k, v in kwargs.items()}
        current.append(call)
        before = _random_state() if options.watch_random else None
        try:
            if chooser is block:
                result = choose(original, *args, **kwargs)
            else:
                result = original(*args, **kwargs)
        finally:
            current.pop()
        if before is not None:
            call.random = not all(map(torch.equal, before, _random_state()))
        if keep:
            call.output = _copied(result)
        return call, result

    def run(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call, result = observe(original, args, kwargs, options.keep or options.graft is not None)
        if options.graft is not None:
            call.again = lambda *a, **k: observe(original, a, k, True)[0]
            result = options.graft(call, result)
            call.output = _copied(result)
            call.again = None
        recorded.calls.append(call)
        return result

    _wrap(undo, block, run)
    if chooser is not block:
        _wrap(undo, chooser, choose)
    if router.experts_path is not None:
        experts = model.get_submodule(router.experts_path)
        handle = experts.register_forward_pre_hook(
            lambda _m, args, kwargs: _note_experts(current, router, args, kwargs),
            with_kwargs=True,
        )
        undo.callback(handle.remove)


def _wrap(undo: ExitStack, module: nn.Module, around: Callable[..., Any]) -> None:
    """Put ``around(original, *args)`` in place of the module's forward until ``undo`` closes."""
    own = module.__dict__.get("forward")
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    # Callers look at the signature to decide which arguments they pass.
    forward.__wrapped__ = original  # type: ignore[attr-defined]
    module.forward = forward

    def restore() -> None:
        if own is None:
            del module.forward
        else:
            module.forward = own

    undo.callback(restore)


def _random_state() -> list[Tensor]:
    """State of the CPU generator, and of every GPU's once one is in use."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return states


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) is tuple:
        return tuple(_copied(v) for v in value)
    return value


def _note_experts(current: list[BlockCall], router: Router, args: Any, kwargs: Any) -> None:
    """Find the (tokens, k) ids and weights among the arguments of the experts."""
    if not current:
        return
    tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
    ids = [t for t in tensors if not t.is_floating_point() and t.dtype != torch.bool]
    for tensor in ids:
        chosen = _ids_of(tensor, router)
        if chosen is not None:
            current[-1].ids = chosen
            current[-1].weights = _weights_of(tensors, chosen)
            return


def _ids_of(tensor: Tensor, router: Router) -> Tensor | None:
    """Expert ids (tokens, k) from ids or from a one-hot mask; -1 where a mask chose none."""
    if tensor.dim() >= 2 and tensor.shape[-1] == router.experts and router.top_k < router.experts:
        mask = tensor.reshape(-1, router.experts)
        values, ids = mask.to(torch.int64).topk(router.top_k, dim=-1)
        return ids.masked_fill(values == 0, -1)
    if tensor.dim() == 2 and 0 < tensor.shape[1] <= router.experts:
        return tensor.detach().clone()
    return None


def _weights_of(tensors: Sequence[Tensor], ids: Tensor) -> Tensor | None:
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel() == ids.numel() and tensor.dim() <= 3:
            return tensor.detach().reshape(ids.shape).clone()
    return None
