"""What a gate says: checklist rows and the decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Decision = Literal["GO", "NO-GO", "INCONCLUSIVE"]
OPEN: Final = frozenset({"inconclusive", "skipped", "error"})
"""Outcomes that leave a required row unsettled."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the checklist. ``where`` is ``path:line`` of what it speaks about."""

    item: str
    layer: str | None
    required: bool
    outcome: str
    evidence: str
    waiver: Mapping[str, Any] | None = None
    rule: str | None = None
    where: str | None = None

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "item": self.item,
            "layer": self.layer,
            "required": self.required,
            "outcome": self.outcome,
            "evidence": self.evidence,
        }
        for key in ("waiver", "rule", "where"):
            if getattr(self, key) is not None:
                out[key] = getattr(self, key)
        return out


@dataclass(frozen=True, slots=True)
class Gate:
    """The decision and everything it rests on; ``report["gate"]``."""

    profile: str
    decision: Decision
    why: tuple[str, ...]
    items: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    fail_on: str = "bitwise"
    next: tuple[Mapping[str, str], ...] = ()
    """Where it is INCONCLUSIVE: ``why`` and ``command`` of what would settle it."""
    crashed: bool = False
    """A required layer crashed, so that nothing better than INCONCLUSIVE could be said."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "profile": self.profile,
            "decision": self.decision,
            "fail_on": self.fail_on,
            "why": list(self.why),
            "items": [row.to_dict() for row in self.items],
            "notes": list(self.notes),
            "next": [dict(step) for step in self.next],
        }
