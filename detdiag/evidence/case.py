"""A case: everything that is known about one incident or one live walk, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from detdiag.evidence.finding import Finding
from detdiag.evidence.observation import Observation
from detdiag.layers import Layer

ProbeState = Literal["done", "skipped", "not_applicable", "out_of_budget", "error"]


@dataclass(frozen=True, slots=True)
class ProbeStatus:
    """How far a live probe got; ``reason`` is one sentence when it is not ``done``."""

    layer: Layer
    state: ProbeState
    reason: str = ""
    wall_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"layer": self.layer, "state": self.state}
        if self.reason:
            out["reason"] = self.reason
        if self.wall_s is not None:
            out["wall_s"] = self.wall_s
        return out


@dataclass(frozen=True, slots=True)
class Margin:
    """Top-1 minus top-2 at one position, and what numerics-only conditions did to it.

    ``noise_logits`` is the noise floor: 2 x the largest absolute logit change at this position
    under numerics-only conditions with the prefix teacher-forced; None where not measured.
    """

    query: str
    position: int
    token: str | None
    margin_logits: float
    margin_ulp: float | None = None
    noise_logits: float | None = None
    flipped: bool = False

    def to_dict(self) -> dict[str, Any]:
        keys = (
            "query",
            "position",
            "token",
            "margin_logits",
            "margin_ulp",
            "noise_logits",
            "flipped",
        )
        out = {k: getattr(self, k) for k in keys}
        out["at_risk"] = self.noise_logits is not None and self.margin_logits <= self.noise_logits
        return out


@dataclass(frozen=True, slots=True)
class Case:
    """Input of the verdict engine.

    ``series`` holds named JSON tables for the report (``sweep``, ``heatmap``, ``routing``,
    ``proof``, ``operators``, ``toggles`` ...); the verdict never reads them.
    """

    observations: tuple[Observation, ...] = ()
    findings: tuple[Finding, ...] = ()
    probes: tuple[ProbeStatus, ...] = ()
    margins: tuple[Margin, ...] = ()
    factor_layers: Mapping[str, str] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)
    series: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    """Files of a case folder that nothing could read, with the reason."""
