"""The phases of an endpoint walk, in order. A phase asks and emits; it never attributes.

Each returns None, or one sentence that says why it tested nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from detdiag.layers import Layer
from detdiag.probes.endpoint.cache import cold_and_warm
from detdiag.probes.endpoint.config import config
from detdiag.probes.endpoint.context import EndpointContext
from detdiag.probes.endpoint.idle import connections, prime, sequential
from detdiag.probes.endpoint.knobs import knobs
from detdiag.probes.endpoint.load import load
from detdiag.probes.endpoint.numerics import numerics


@dataclass(frozen=True, slots=True)
class Phase:
    """``share`` of the time that is left relative to the phases after it; ``layers`` that it
    serves (it runs if one of them is asked for)."""

    name: str
    run: Callable[[EndpointContext], Awaitable[str | None]]
    share: float
    layers: tuple[Layer, ...]


PHASES: Final[tuple[Phase, ...]] = (
    Phase("config", config, 0.1, ("config",)),
    Phase("prime", prime, 2.0, ()),
    Phase("idle", sequential, 5.0, ()),
    Phase("connections", connections, 1.5, ("version",)),
    Phase("knobs", knobs, 1.0, ("config",)),
    Phase("cache", cold_and_warm, 1.5, ("batch",)),
    Phase("load", load, 7.0, ("batch",)),
    Phase("numerics", numerics, 0.5, ()),
)
"""Phases without layers are the ground for all others and always run."""

__all__ = ["PHASES", "EndpointContext", "Phase"]
