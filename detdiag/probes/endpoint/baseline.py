"""An earlier record of the same server as the other session of a drift test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detdiag.errors import DetdiagError
from detdiag.evidence.case import Case
from detdiag.evidence.finding import Finding
from detdiag.evidence.observation import Observation
from detdiag.evidence.record import read_record


@dataclass(frozen=True, slots=True)
class Baseline:
    """Idle replies of the earlier session, marked as such, and what the server said then."""

    observations: tuple[Observation, ...]
    facts: Mapping[str, Any]


def read_endpoint_baseline(path: Path) -> Baseline:
    """Raises :class:`DetdiagError` where ``path`` is no record of an endpoint walk."""
    case: Case = read_record(path)
    if case.target.get("kind") != "endpoint":
        raise DetdiagError(
            "expected the record of an earlier run --endpoint", path=path,
            tip="keep one with -o NAME.ndjson",
        )  # fmt: skip
    kept = [o for o in case.observations if _idle(o)]
    if not kept:
        raise DetdiagError("the record holds no idle reply to compare with", path=path)
    return Baseline(tuple(_marked(o) for o in kept), case.fingerprint)


def _idle(one: Observation) -> bool:
    told = (one.response or {}).get("context", {})
    earlier = one.factors.get("session") not in (None, "now")
    return one.role == "trial" and told.get("arm") == "idle" and not earlier


def _marked(one: Observation) -> Observation:
    return replace(one, id=f"baseline-{one.id}", factors={**one.factors, "session": "baseline"})


def changed_facts(before: Mapping[str, Any], now: Mapping[str, Any]) -> Finding | None:
    """What the server says about itself otherwise than then; None where nothing changed."""
    changed = [
        f"{name} was {before[name]} and is {now[name]}"
        for name in sorted(before.keys() & now.keys())
        if before[name] != now[name]
    ]
    if not changed:
        return None
    return Finding(
        "version", "version.server-facts-changed", "inconclusive",
        "; ".join(changed[:4]), "medium", data={"changed": changed},
    )  # fmt: skip
