"""Results kept from one run and put into the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from detdiag.trace.calls import ForwardCall
from detdiag.trace.graft import Site, Store, captured, grafted
from detdiag.trace.modules import Frame, tracked
from detdiag.trace.schema import tensors_in
from detdiag.trace.state import Name, Snapshot, restore


@dataclass
class Frozen:
    """Results kept from one run and put into the others: by operator call, or by module call."""

    sites: dict[Site, list[Tensor]] = field(default_factory=dict)
    modules: dict[Frame, list[Tensor]] = field(default_factory=dict)
    reset: tuple[Name, ...] = ()

    def __or__(self, other: Frozen) -> Frozen:
        return Frozen(
            {**self.sites, **other.sites},
            {**self.modules, **other.modules},
            self.reset + other.reset,
        )


def _with(output: Any, values: list[Tensor]) -> Any:
    """``output`` with its tensors replaced in order, where that can be done."""
    if isinstance(output, Tensor):
        return values.pop(0).clone() if values else output
    if isinstance(output, (tuple, list)) and not hasattr(output, "_fields"):
        return type(output)(_with(o, values) for o in output)
    return output


def keep_sites(model: nn.Module, call: ForwardCall, sites: frozenset[Site]) -> Frozen:
    """Run once and keep the results of the operator calls in ``sites``."""
    store = Store()
    with captured(model, lambda s: s in sites, frozenset(s[0] for s in sites), store):
        call.run(model)
    return Frozen(sites=store.values)


def keep_modules(model: nn.Module, call: ForwardCall, paths: frozenset[str]) -> Frozen:
    """Run once and keep the outputs of the modules at ``paths``."""
    kept: dict[Frame, list[Tensor]] = {}

    def leave(frame: Frame, output: Any) -> None:
        if frame.path in paths:
            kept[frame] = [t.detach().clone() for t in tensors_in(output)]

    with tracked(model, leave=leave):
        call.run(model)
    return Frozen(modules=kept)


@contextmanager
def frozen_run(model: nn.Module, state: Snapshot, frozen: Frozen) -> Iterator[None]:
    """Put the kept results into a forward; state named in ``reset`` is put back first."""
    if frozen.reset:
        restore(model, state, frozen.reset)

    def leave(frame: Frame, output: Any) -> Any:
        values = frozen.modules.get(frame)
        return None if values is None else _with(output, list(values))

    with ExitStack() as stack:
        if frozen.modules:
            stack.enter_context(tracked(model, leave=leave))
        if frozen.sites:
            stack.enter_context(grafted(model, frozen.sites))
        yield
