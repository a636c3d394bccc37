"""What a signed-off report already said: findings are new against it, unchanged, or gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detdiag.report.model import findings, layers_in_walk_order

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Earlier:
    """``failed`` holds layer, rule and subject of every failed finding of the baseline report."""

    failed: frozenset[Key]

    def state(self, layer: str, finding: Mapping[str, Any]) -> str:
        """``new`` or ``unchanged`` (SARIF's words)."""
        return "unchanged" if key_of(layer, finding) in self.failed else "new"

    def gone(self, report: Mapping[str, Any]) -> list[str]:
        """Rules that failed in the baseline and are not reported any more."""
        now = failed_keys(report)
        return sorted({rule for layer, rule, subject in self.failed - now})


def key_of(layer: str, finding: Mapping[str, Any]) -> Key:
    return layer, str(finding.get("rule")), str(finding.get("subject") or "")


def failed_keys(report: Mapping[str, Any]) -> frozenset[Key]:
    return frozenset(
        key_of(str(layer.get("layer")), finding)
        for layer in layers_in_walk_order(report)
        for finding in findings(layer)
        if finding.get("outcome") == "failed"
    )


def read_earlier(path: str | None) -> Earlier | None:
    """None where the baseline is no JSON report (a fingerprint or a record says nothing of
    findings); the file has been read as a baseline before, so it can be read."""
    if path is None or Path(path).suffix != ".json":
        return None
    raw = json.loads(Path(path).read_bytes().decode("utf-8-sig"))
    if not isinstance(raw, dict) or not str(raw.get("schema", "")).startswith("detdiag.report/"):
        return None
    return Earlier(failed_keys(raw))
