"""The logs of a case: observations, and what was left out of them and why. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detdiag.evidence.observation import Observation
from detdiag.evidence.record import read_record


@dataclass(frozen=True, slots=True)
class Logs:
    """What the logs of a case gave. ``ignored`` is what could not be read, ``notes`` is what was
    left out of it, ``without_answers`` names logs of a known format that hold calls and no answer
    that could be compared."""

    observations: tuple[Observation, ...] = ()
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    without_answers: tuple[str, ...] = ()


def read_logs(paths: Sequence[Path]) -> Logs:
    """Observations of every log; raise :class:`DetdiagError` where a file cannot be read."""
    if not paths:
        return Logs()
    from detdiag.evidence.adapters import read_files, why_ignored

    out: list[Observation] = []
    ignored: list[str] = []
    notes: list[str] = []
    without_answers: list[str] = []
    for path in paths:
        if path.suffix == ".ndjson":
            out.extend(read_record(path).observations)
    for path, found in read_files([p for p in paths if p.suffix != ".ndjson"]).items():
        if found is None:
            ignored.append(f"{path.name}: {why_ignored(path)}")
            continue
        out.extend(found.observations)
        ignored.extend(f"{path.name}:{line}: {why}" for line, why in found.broken)
        if found.read_with is not None:
            notes.append(f"{path.name}: read together with {found.read_with}")
        elif found.observations:
            notes.extend(f"{path.name}: {note}" for note in found.notes)
        elif found.calls:
            without_answers.append(f"{path.name} ({found.format}): {'; '.join(found.notes)}")
        else:
            ignored.append(f"{path.name} ({found.format}): {'; '.join(found.notes)}")
    return Logs(tuple(out), tuple(ignored), tuple(notes), tuple(without_answers))


def unique(observations: Sequence[Observation], ignored: list[str]) -> list[Observation]:
    """Ids made unique: two files may number alike. The same observation written twice is one
    run, and is counted once."""
    seen: dict[str, list[Observation]] = {}
    out = []
    twice = 0
    for observation in observations:
        same = seen.setdefault(observation.id, [])
        if any(_same_run(observation, other) for other in same):
            twice += 1
            continue
        same.append(observation)
        count = len(same)
        out.append(
            replace(observation, id=f"{observation.id}#{count}") if count > 1 else observation
        )
    if twice:
        ignored.append(f"{twice} observations are written twice (same id and content)")
    return out


def _same_run(one: Observation, other: Observation) -> bool:
    """Two exports that overlap hold one call twice; what is worked out over a whole file (overlap
    with other calls, the name of the replica) may differ between them, the time may not."""
    if "time" in one.factors and one.factors["time"] == other.factors.get("time"):
        return (one.query, one.output) == (other.query, other.output)
    return replace(one, source=None) == replace(other, source=None)


def recorded_method(read: Logs, *, passive: bool) -> dict[str, Any]:
    """``passive``: logs are part of the case, and in them nobody varied anything on purpose."""
    out: dict[str, Any] = {"conditions": "recorded evidence"}
    limits = list(read.notes)
    if passive:
        out["passive"] = True
        limits.insert(0, "logs show association, not proof: no condition was varied on purpose")
    if limits:
        out["limits"] = limits
    if read.without_answers:
        out["without_answers"] = list(read.without_answers)
    return out
