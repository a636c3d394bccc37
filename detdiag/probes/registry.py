"""The probes in the order of the walk. Each is imported when it is reached, torch with it."""

from __future__ import annotations

import importlib
from typing import Final, cast

from detdiag.layers import Layer
from detdiag.probes.interface import Probe

PROBES: Final[tuple[tuple[Layer, str, str], ...]] = (
    ("config", "detdiag.probes.config", "ConfigProbe"),
    ("input", "detdiag.probes.input", "InputProbe"),
    ("batch", "detdiag.probes.batch", "BatchProbe"),
    ("operator", "detdiag.probes.operator", "OperatorProbe"),
    ("decode", "detdiag.probes.decode", "DecodeProbe"),
    ("moe", "detdiag.probes.moe", "MoeProbe"),
    ("version", "detdiag.probes.version", "VersionProbe"),
)
"""Layer, module, class. A probe is a class without arguments that satisfies ``Probe``."""

BUDGET_SHARES: Final[dict[Layer, float]] = {
    "config": 0.04,
    "input": 0.04,
    "batch": 0.46,
    "operator": 0.26,
    "decode": 0.06,
    "moe": 0.10,
    "version": 0.04,
}
"""Share of the walk's budget that a probe may use; what one leaves goes to those after it."""


def load_probe(layer: Layer) -> Probe:
    """The probe of ``layer``."""
    module, name = next((m, n) for known, m, n in PROBES if known == layer)
    return cast(Probe, getattr(importlib.import_module(module), name)())
