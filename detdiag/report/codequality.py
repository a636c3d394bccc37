"""GitLab Code Quality JSON: one issue a failed finding."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from detdiag.report.anchors import anchor
from detdiag.report.model import Report, current_waiver, gated_findings
from detdiag.report.safe import dump_json, visible

_SEVERITY: Final = {"high": "critical", "medium": "major", "low": "minor", "info": "info"}


def render_codequality(report: Report) -> str:
    """A JSON array as GitLab reads it: description, check_name, fingerprint, severity, location."""
    issues: list[dict[str, Any]] = []
    seen: set[str] = set()
    for layer, finding in gated_findings(report):
        if current_waiver(finding):
            continue
        issue = _issue(layer, finding)
        if issue["fingerprint"] not in seen:
            seen.add(issue["fingerprint"])
            issues.append(issue)
    return dump_json(issues) + "\n"


def _issue(layer: str, finding: Mapping[str, Any]) -> dict[str, Any]:
    path, line = anchor(finding)
    rule = visible(finding.get("rule")) or "detdiag.finding"
    key = "\x00".join(
        (rule, path, *(visible(finding.get(k)) for k in ("subject", "surface", "summary")))
    )
    return {
        "description": f"{layer}: {visible(finding.get('summary')) or rule}",
        "check_name": rule,
        "fingerprint": hashlib.sha256(key.encode()).hexdigest(),
        "severity": _severity(finding),
        "location": {"path": path, "lines": {"begin": line}},
    }


def _severity(finding: Mapping[str, Any]) -> str:
    """What the gate only warns of is never worse than minor."""
    if finding.get("level") == "warn":
        return "info" if finding.get("severity") == "info" else "minor"
    return _SEVERITY.get(str(finding.get("severity")), "major")
