"""Which layers a check must settle before it may say GO."""

from __future__ import annotations

from detdiag.evidence.case import Case
from detdiag.gate.settings import Settings
from detdiag.layers import LAYERS


def required_layers(settings: Settings, case: Case) -> tuple[str, ...]:
    """``require`` as set; without it (profile quick) every layer that a given file speaks of.
    A baseline makes the version layer required in every profile."""
    asked = settings.get("require")
    if settings.get("endpoint") and settings.origin("require") == "default of pr":
        # a server that returns no alternatives cannot show how it decodes
        asked = tuple(layer for layer in asked if layer != "decode")
    if asked is None:
        asked = {f.layer for f in case.findings}
        if settings.get("paths"):
            asked |= {"config"}
    named = set(asked) | ({"version"} if settings.get("baseline") else set())
    return tuple(layer for layer in LAYERS if layer in named)
