"""Results of a proof as frozen data; ``to_dict`` gives the JSON of the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from detdiag.trace.effects import Distance, MarginBridge

Status = Literal[
    "equal", "proven", "partial", "unproven", "not_repeatable", "not_neutral", "inputs_differ"
]
SourceKind = Literal[
    "numerics",
    "positions",
    "shared_value",
    "routing",
    "branch",
    "hidden",
    "state",
    "stochastic",
    "not_repeatable",
]


@dataclass(frozen=True, slots=True)
class Effect:
    """One intervention or placebo: ``remaining`` is the distance to the reference after it."""

    method: str
    target: str
    remaining: Distance
    changed: bool
    """Whether the logits moved at all against the run without the intervention."""
    calls: int = 0
    wall_s: float = 0.0
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "target": self.target,
            "bit_equal": self.remaining.bit_equal,
            "changed": self.changed,
            "calls": self.calls,
            "remaining": self.remaining.to_dict(),
            "wall_s": round(self.wall_s, 3),
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class Source:
    """One source of the divergence, in the order found.

    ``before`` and ``after`` are the distances with the sources found earlier fixed, without and
    with this one fixed; ``alone`` is what is left when only this one is not fixed.
    """

    op: str
    module: str
    kind: SourceKind
    fix: str
    calls: int
    before: Distance
    after: Distance
    alone: Distance | None = None
    born: int = 1
    experts: bool = False
    """Whether the module routes tokens to experts."""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "op": self.op,
            "module": self.module,
            "kind": self.kind,
            "fix": self.fix,
            "calls": self.calls,
            "born": self.born,
            "experts": self.experts,
            "own_effect": (self.alone or self.before).to_dict(),
            "before": self.before.to_dict(),
            "remaining": self.after.to_dict(),
            "note": self.note,
        }


@dataclass(frozen=True)
class Proof:
    """Outcome of :func:`prove_batch` or :func:`prove_rerun`."""

    mode: Literal["batch", "rerun"]
    status: Status
    statement: tuple[str, str, str]
    neutral: bool | None = None
    first_divergence: dict[str, Any] | None = None
    difference: Distance | None = None
    sources: tuple[Source, ...] = ()
    interventions: tuple[Effect, ...] = ()
    placebos: tuple[Effect, ...] = ()
    operators: tuple[dict[str, Any], ...] = ()
    heatmap: dict[str, Any] | None = None
    coverage: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    margins: MarginBridge | None = None
    replay: tuple[dict[str, Any], ...] = ()
    differing: int | None = None
    runs: int | None = None
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    wall_s: float = 0.0

    @property
    def proven(self) -> bool:
        """Fixing the sources alone makes the bits agree, and no placebo did anything."""
        return self.status == "proven"

    def to_dict(self) -> dict[str, Any]:
        """The ``proof`` table; ``operators`` and ``heatmap`` are tables of their own."""
        return {
            "mode": self.mode,
            "status": self.status,
            "statement": list(self.statement),
            "neutral": self.neutral,
            "first_divergence": self.first_divergence,
            "difference": self.difference.to_dict() if self.difference else None,
            "sources": [s.to_dict() for s in self.sources],
            "interventions": [e.to_dict() for e in self.interventions],
            "placebos": [e.to_dict() for e in self.placebos],
            "replay": list(self.replay),
            "counts": self.labels,
            "coverage": self.coverage,
            "margins": self.margins.to_dict() if self.margins else None,
            "differing": self.differing,
            "runs": self.runs,
            "skipped": list(self.skipped),
            "notes": list(self.notes),
            "wall_s": round(self.wall_s, 3),
        }
