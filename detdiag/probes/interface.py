"""What a probe is: a layer and a generator of events. Probes never attribute."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from detdiag.evidence.record import Event
from detdiag.layers import Layer

if TYPE_CHECKING:
    from detdiag.targets.local import LocalTarget


@dataclass(frozen=True, slots=True)
class Plan:
    """What the user asked for. ``budget_s`` bounds the whole walk in wall seconds."""

    batch_sizes: tuple[int, ...] = (1, 2, 4, 8)
    repeats: int = 20
    max_new_tokens: int = 32
    budget_s: float = 180.0
    seed: int = 0
    baseline: Mapping[str, Any] | None = None
    generate_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the user's own ``generate`` call (empty: a bare call)."""


@dataclass(slots=True)
class ProbeContext:
    """Shared state of one walk.

    ``deadline`` is a ``time.monotonic()`` value for the current probe; a probe that runs out
    yields a :class:`ProbeStatus` ``out_of_budget`` saying what it left untested. ``scratch``
    passes results between probes (for example the solo run of each prompt).
    """

    target: LocalTarget
    plan: Plan
    deadline: float
    scratch: dict[str, Any] = field(default_factory=dict)

    def remaining_s(self) -> float:
        """Wall seconds left for the current probe (negative when overrun)."""
        return self.deadline - time.monotonic()


class Probe(Protocol):
    """One layer's live experiment.

    ``run`` yields events as trials finish. It may end without any; an exception becomes a
    :class:`ProbeStatus` ``error``, never a dead run.
    """

    layer: Layer

    def run(self, context: ProbeContext) -> Iterator[Event]: ...
