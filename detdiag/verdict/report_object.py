"""The report object: one verdict, seven layer reports, and the tables for the figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any, Final, Literal

from detdiag import __version__
from detdiag.evidence.case import Case, Margin
from detdiag.evidence.finding import Finding, FindingOutcome, Locus
from detdiag.layers import LAYERS, Layer

SCHEMA: Final = "detdiag.report/1"
Status = Literal["attributed", "clean", "inconclusive"]
Confidence = Literal["confirmed", "likely", "suspected"]
Attribution = Literal["cause", "contributor", "ruled_out", "untested", "inconclusive"]


def cut(text: str, width: int = 160) -> str:
    """``text`` shortened at a word."""
    return shorten(text, width, placeholder=" ...")


@dataclass(frozen=True, slots=True)
class Also:
    """A further cause, weaker or later than the one named."""

    layer: Layer
    rule: str
    confidence: Confidence

    def to_dict(self) -> dict[str, Any]:
        return {"layer": self.layer, "rule": self.rule, "confidence": self.confidence}


@dataclass(frozen=True, slots=True)
class Next:
    """The cheapest experiment that would settle or sharpen the case."""

    why: str
    command: str

    def to_dict(self) -> dict[str, Any]:
        return {"why": self.why, "command": self.command}


@dataclass(frozen=True, slots=True)
class Verdict:
    """``layer`` is None unless ``status`` is "attributed"."""

    status: Status
    sentence: str
    layer: Layer | None = None
    rule: str | None = None
    confidence: Confidence | None = None
    divergence: str = "none"
    also: tuple[Also, ...] = ()
    ruled_out: tuple[Layer, ...] = ()
    untested: tuple[Layer, ...] = ()
    first_divergence: Locus | None = None
    confounded: tuple[str, ...] = ()
    would_change: str = ""
    next: tuple[Next, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "layer": self.layer,
            "rule": self.rule,
            "confidence": self.confidence,
            "divergence": self.divergence,
            "sentence": self.sentence,
            "also": [a.to_dict() for a in self.also],
            "ruled_out": list(self.ruled_out),
            "untested": list(self.untested),
            "first_divergence": None
            if self.first_divergence is None
            else self.first_divergence.to_dict(),
            "confounded": list(self.confounded),
            "would_change": self.would_change,
            "next": [n.to_dict() for n in self.next],
        }


@dataclass(frozen=True, slots=True)
class LayerReport:
    layer: Layer
    outcome: FindingOutcome
    attribution: Attribution
    title: str
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    """Why a layer was not tested, in one sentence."""

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "layer": self.layer,
            "outcome": self.outcome,
            "attribution": self.attribution,
            "title": self.title,
            "findings": [f.to_dict() for f in self.findings],
        }
        if self.reason:
            out["reason"] = self.reason
        return out


def method_of(case: Case) -> dict[str, Any]:
    """How the case was measured: its own method, the files nobody could read, and the probes."""
    out = dict(case.method)
    if case.ignored:
        out["ignored"] = list(case.ignored)
    if case.probes:
        out["probes"] = [probe.to_dict() for probe in case.probes]
    return out


@dataclass(frozen=True, slots=True)
class Report:
    verdict: Verdict
    layers: tuple[LayerReport, ...]
    margins: tuple[Margin, ...] = ()
    observations: int = 0
    target: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    method: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    remedies: Mapping[str, Any] = field(default_factory=dict)
    """``white_box`` and ``black_box`` lists, best first, and ``figures``; empty without a cause."""

    def __post_init__(self) -> None:
        assert tuple(r.layer for r in self.layers) == LAYERS

    def to_dict(self) -> dict[str, Any]:
        """The JSON report; every other format renders this object."""
        return {
            "schema": SCHEMA,
            "tool": {"name": "detdiag", "version": __version__},
            "verdict": self.verdict.to_dict(),
            "layers": [r.to_dict() for r in self.layers],
            "margins": [m.to_dict() for m in self.margins],
            "observations": self.observations,
            "target": dict(self.target),
            "fingerprint": dict(self.fingerprint),
            "method": dict(self.method),
            "data": dict(self.data),
            **({"remedies": dict(self.remedies)} if self.remedies else {}),
        }
