"""One finding: what a probe or a rule found in one layer, with the counts and the way out.

A finding is data. Probes and rules write findings; only ``detdiag.verdict`` attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from detdiag.layers import Layer

FindingOutcome = Literal["passed", "failed", "inconclusive", "not_applicable", "skipped", "error"]
Severity = Literal["high", "medium", "low", "info"]
Kind = Literal[
    "sampling_still_on",
    "ignored_parameter",
    "unspecified_default",
    "best_effort_only",
    "breaks_batch_invariance",
    "unsupported_error",
    "ok",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Evidence:
    """``value`` of ``n`` in ``unit`` with a 95 % interval where one applies."""

    metric: str
    value: float | int | str | None
    n: int | None = None
    unit: str = ""
    ci95: tuple[float, float] | None = None
    conditions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {"metric": self.metric, "value": self.value}
        if self.n is not None:
            out["n"] = self.n
        if self.unit:
            out["unit"] = self.unit
        if self.ci95 is not None:
            out["ci95"] = list(self.ci95)
        if self.conditions:
            out["conditions"] = list(self.conditions)
        return out


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do, as a ready command or setting where there is one, with its cost."""

    action: str
    command: str | None = None
    cost: str | None = None
    verify: str | None = None
    source: str | None = None

    def to_dict(self) -> dict[str, Any]:
        keys = ("action", "command", "cost", "verify", "source")
        return {k: getattr(self, k) for k in keys if getattr(self, k) is not None}


@dataclass(frozen=True, slots=True)
class Locus:
    """Where something starts: query id, token index (0-based, prompt tokens included where the
    probe teacher-forces the whole sequence), module path and operator."""

    query: str | None = None
    token: int | None = None
    module: str | None = None
    op: str | None = None

    def to_dict(self) -> dict[str, Any]:
        keys = ("query", "token", "module", "op")
        return {k: getattr(self, k) for k in keys if getattr(self, k) is not None}


@dataclass(frozen=True, slots=True)
class Finding:
    """``outcome`` "failed" points at a cause, "passed" rules something out by measurement.

    ``mechanism`` marks a finding that says *where* a difference arises (a proof on its own), so
    that it takes precedence over a contrast on the factors in ``explains`` (names from
    ``detdiag.layers.FACTOR_LAYERS``, or ``"repeat"`` for a failing control). ``proven`` says that
    both directions were shown (fixed alone it stops, broken alone it returns) or that one
    instance is proof. ``data`` carries tables for the report and is free-form JSON.
    """

    layer: Layer
    rule: str
    outcome: FindingOutcome
    summary: str
    severity: Severity = "info"
    kind: Kind | None = None
    subject: str | None = None
    surface: str | None = None
    evidence: tuple[Evidence, ...] = ()
    remedy: Remedy | None = None
    locus: Locus | None = None
    mechanism: bool = False
    explains: tuple[str, ...] = ()
    proven: bool = False
    where: str | None = None
    """File and line (``path:line``) that the finding is about, for static rules."""
    data: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object; keys in a fixed order, empty ones left out."""
        out: dict[str, Any] = {"rule": self.rule}
        for key in ("kind", "subject", "surface"):
            if getattr(self, key) is not None:
                out[key] = getattr(self, key)
        out["outcome"] = self.outcome
        out["severity"] = self.severity
        out["summary"] = self.summary
        out["evidence"] = [e.to_dict() for e in self.evidence]
        if self.remedy is not None:
            out["remedy"] = self.remedy.to_dict()
        if self.locus is not None:
            out["locus"] = self.locus.to_dict()
        if self.mechanism:
            out["mechanism"] = True
        if self.explains:
            out["explains"] = list(self.explains)
        if self.proven:
            out["proven"] = True
        if self.where is not None:
            out["where"] = self.where
        if self.data:
            out["data"] = dict(self.data)
        return out

    @classmethod
    def from_dict(cls, layer: Layer, raw: Mapping[str, Any]) -> Finding:
        """Inverse of :meth:`to_dict` (the layer is written beside the finding)."""
        remedy = raw.get("remedy")
        locus = raw.get("locus")
        return cls(
            layer=layer,
            rule=raw["rule"],
            outcome=raw["outcome"],
            summary=raw.get("summary", ""),
            severity=raw.get("severity", "info"),
            kind=raw.get("kind"),
            subject=raw.get("subject"),
            surface=raw.get("surface"),
            evidence=tuple(_evidence(e) for e in raw.get("evidence", ())),
            remedy=None if remedy is None else Remedy(**remedy),
            locus=None if locus is None else Locus(**locus),
            mechanism=raw.get("mechanism", False),
            explains=tuple(raw.get("explains", ())),
            proven=raw.get("proven", False),
            where=raw.get("where"),
            data=raw.get("data", {}),
        )


def _evidence(raw: Mapping[str, Any]) -> Evidence:
    ci: Sequence[float] | None = raw.get("ci95")
    return Evidence(
        metric=raw["metric"],
        value=raw.get("value"),
        n=raw.get("n"),
        unit=raw.get("unit", ""),
        ci95=None if ci is None else (ci[0], ci[1]),
        conditions=tuple(raw.get("conditions", ())),
    )
