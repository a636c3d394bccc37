"""A file of fingerprints over time, one JSON object a line, and the points at which they change."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detdiag.errors import DetdiagError
from detdiag.evidence.record import iter_lines
from detdiag.fingerprint.diff import FieldDiff, diff_fingerprints


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """Between two neighbouring entries something changed that can change the output."""

    before: str
    after: str
    rows: tuple[FieldDiff, ...]

    def describe(self) -> str:
        fields = ", ".join(row.field for row in self.rows[:4])
        more = f" and {len(self.rows) - 4} more" if len(self.rows) > 4 else ""
        return f"changed between {self.before} and {self.after}: {fields}{more}"


def append(path: Path, facts: Mapping[str, Any]) -> None:
    """Add one entry; the line is complete or absent, whatever happens."""
    line = json.dumps(facts, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DetdiagError(f"cannot write: {error.strerror}", path=path) from error


def entries(path: Path) -> list[dict[str, Any]]:
    """All entries in order of time written; a cut last line is dropped."""
    return [entry for _, entry in iter_lines(path)] if path.exists() else []


def change_points(history: Sequence[Mapping[str, Any]]) -> list[ChangePoint]:
    """Where neighbours differ; inert differences (severity info) are no change."""
    found = []
    for index, (one, two) in enumerate(zip(history, history[1:], strict=False)):
        rows = tuple(row for row in diff_fingerprints(one, two) if row.severity != "info")
        if rows:
            found.append(ChangePoint(_when(one, index), _when(two, index + 1), rows))
    return found


def _when(entry: Mapping[str, Any], index: int) -> str:
    return str(entry.get("created", f"entry {index + 1}"))
