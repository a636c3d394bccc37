"""Touch single operators of a running forward: capture, replace or replay their results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from detdiag.trace.align import Cut
from detdiag.trace.memory import renames
from detdiag.trace.modules import Frame, ModuleStack, tracked
from detdiag.trace.schema import named_tensors, op_info, tensors_in

Site = tuple[str, Frame, int]
"""(operator, module call, occurrence within it): names one operator call of a forward."""

Touch = Callable[["Running"], Any]


@dataclass(slots=True)
class Running:
    """One operator call in flight: ``out`` is its result."""

    site: Site
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any


class Tap(TorchDispatchMode):
    """Call ``touch`` on every recorded call of an operator in ``names``; its value, when not
    None, replaces the result (in place where the operator writes in place)."""

    def __init__(self, names: frozenset[str], stack: ModuleStack, touch: Touch) -> None:
        super().__init__()
        self.names = names
        self.stack = stack
        self.touch = touch
        self._seen: Counter[tuple[Frame, str]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        info = op_info(func)
        if info.metadata or info.name not in self.names:
            return func(*args, **kwargs)
        frame = self.stack.top
        out = func(*args, **kwargs)
        results = tensors_in(out)
        if not info.writes and renames(named_tensors(info, args, kwargs), results):
            return out
        occurrence = self._seen[(frame, info.name)]
        self._seen[(frame, info.name)] += 1
        running = Running((info.name, frame, occurrence), func, args, kwargs, out)
        new = self.touch(running)
        return out if new is None else _replace(out, new, bool(info.writes))


def _replace(out: Any, new: Any, in_place: bool) -> Any:
    if not in_place:
        return new
    for target, value in zip(tensors_in(out), tensors_in(new), strict=False):
        target.copy_(value)
    return out


@contextmanager
def tapped(model: nn.Module, names: frozenset[str], touch: Touch) -> Iterator[None]:
    """Tap operators of ``model`` while the context is open."""
    with tracked(model) as stack:
        with Tap(names, stack, touch):
            yield


@dataclass
class Store:
    """Captured results by site, at most ``limit_bytes`` in all (later ones are dropped)."""

    limit_bytes: int = 256 << 20
    values: dict[Site, list[Tensor]] = field(default_factory=dict)
    size: int = 0
    full: bool = False

    def keep(self, site: Site, tensors: list[Tensor]) -> None:
        size = sum(t.numel() * t.element_size() for t in tensors)
        if self.size + size > self.limit_bytes:
            self.full = True
            return
        self.size += size
        self.values[site] = [t.detach().clone() for t in tensors]


@contextmanager
def captured(
    model: nn.Module,
    wanted: Callable[[Site], bool],
    names: frozenset[str],
    store: Store,
    cuts: Mapping[Site, list[Cut]] | None = None,
) -> Iterator[Store]:
    """Keep the results of the wanted calls (cut to one row where ``cuts`` says how)."""

    def touch(running: Running) -> None:
        if wanted(running.site):
            tensors = tensors_in(running.out)
            if cuts is not None and running.site in cuts:
                pairs = zip(cuts[running.site], tensors, strict=False)
                tensors = [c.apply(t) for c, t in pairs]
            store.keep(running.site, tensors)

    with tapped(model, names, touch):
        yield store


@contextmanager
def grafted(
    model: nn.Module,
    values: Mapping[Site, list[Tensor]],
    cuts: Mapping[Site, list[Cut]] | None = None,
    count: Counter[str] | None = None,
) -> Iterator[None]:
    """Put captured results in place of the calls' own (into one row where ``cuts`` says so)."""

    def touch(running: Running) -> Any:
        new = values.get(running.site)
        if new is None:
            return None
        if count is not None:
            count[running.site[0]] += 1
        picks = cuts.get(running.site) if cuts else None
        return _put(running.out, new, picks)

    with tapped(model, frozenset(site[0] for site in values), touch):
        yield


def _put(out: Any, new: list[Tensor], cuts: list[Cut] | None) -> Any:
    tensors = tensors_in(out)
    done = []
    for i, t in enumerate(tensors):
        if i >= len(new):
            done.append(t)
            continue
        cut = cuts[i] if cuts is not None and i < len(cuts) else None
        done.append(_into(t, new[i], cut))
    return done[0] if isinstance(out, Tensor) else type(out)(done)


def _into(t: Tensor, value: Tensor, cut: Cut | None) -> Tensor:
    whole = t.clone()
    if cut is None:
        return whole.copy_(value.reshape(t.shape))
    assign(whole, value, cut)
    return whole


def assign(t: Tensor, value: Tensor, cut: Cut) -> None:
    """Write ``value`` where ``cut`` reads (``t`` contiguous where the cut folds)."""
    if cut.fold is not None:
        axis, rows, columns = cut.fold
        shape = list(t.shape)
        shape[axis : axis + 1] = [rows, columns, shape[axis] // (rows * columns)]
        t = t.view(shape)
    index: list[Any] = [slice(None)] * t.dim()
    for axis, pick in enumerate(cut.picks):
        if isinstance(pick, slice):
            index[axis] = pick
        elif pick is not None:
            index[axis] = torch.tensor(pick, device=t.device)
    target_shape = t[tuple(index)].shape
    t[tuple(index)] = value.reshape(target_shape)
