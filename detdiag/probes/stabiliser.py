"""Found sources of run-to-run differences, and how to run with them out of the way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from detdiag.probes import freeze, rng
from detdiag.probes.modules import Birth, ModuleLog, recording
from detdiag.probes.runs import Run, run_padded
from detdiag.targets.local import LocalTarget
from detdiag.targets.padding import Padded

Kind = Literal["stochastic", "state", "race", "unlocated"]


@dataclass(frozen=True, slots=True)
class Source:
    """One reason why identical conditions differ.

    ``modules``: where it arises, first one first. ``k`` of ``n`` reruns differed from the first
    before it was fixed, ``k_fixed`` of ``n_fixed`` after. ``what``: generators that moved, or the
    state that changed.
    """

    kind: Kind
    modules: tuple[str, ...]
    token: int | None
    k: int
    n: int
    k_fixed: int
    n_fixed: int
    what: tuple[str, ...] = ()
    birth: Birth | None = None
    by_content: bool | None = None

    @property
    def proven(self) -> bool:
        """Shown both ways: differs as it is, repeats with this fixed."""
        return self.k > 0 and self.k_fixed == 0 and self.n_fixed >= 2


@dataclass(slots=True)
class Stabiliser:
    """How to run so that found sources are out of the way."""

    target: LocalTarget
    sources: list[Source] = field(default_factory=list)
    seeded: bool = False
    fresh: bool = False
    pinned: freeze.Pinned = field(default_factory=dict)

    def run(
        self, batch: Padded, start: int, rows: Sequence[int] = (0,), *, pin_rows: Sequence[int] = ()
    ) -> list[Run]:
        """One stabilised forward of ``batch``."""
        with self.ready(batch, pin_rows or rows) as model:
            return run_padded(self.target, batch, start, rows, model=model)

    def log(self, batch: Padded, row: int = 0, *, pin_rows: Sequence[int] = ()) -> ModuleLog:
        """One stabilised forward, recorded module by module."""
        with self.ready(batch, pin_rows or (row,)) as model:
            return recorded(self.target, batch, row, model)

    def pinned_for(self, batch: Padded) -> Stabiliser:
        """The same fixes for another row, pinned to what that row gives on its own."""
        if not self.pinned:
            return self
        plain = replace(self, pinned={})
        return replace(self, pinned=freeze.pins(plain.log(batch), tuple(self.pinned)))

    @contextlib.contextmanager
    def ready(self, batch: Padded, rows: Sequence[int]) -> Iterator[Any]:
        """The model to call, with seeds, fresh state and pins in place."""
        model = (self.target.fresh_model() if self.fresh else None) or self.target.model
        with contextlib.ExitStack() as stack:
            if self.seeded:
                stack.enter_context(rng.preserved())
                rng.seed_all(0)
            if self.pinned:
                stack.enter_context(freeze.frozen(model, self.pinned, batch, rows))
            yield model


def recorded(target: LocalTarget, batch: Padded, row: int, model: Any) -> ModuleLog:
    with recording(model, batch, row) as log:
        log.logits = target.forward_padded(batch, model=model)[row].detach()
    return log


def differing(runs: Sequence[Run]) -> int:
    """Reruns whose digests differ from the first run's."""
    return sum(run.digests != runs[0].digests for run in runs[1:])
