"""Taking private text out of an incident report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from detdiag.report.redact import placeholder

LEVELS: Final = ("none", "prompts", "all")


def redact(report: Mapping[str, Any], level: str) -> dict[str, Any]:
    """A copy of the report's dict. ``prompts`` hides requests and answers; ``all`` names too."""
    if level == "none":
        return dict(report)
    out = {**report, "redact": level}
    out["incidents"] = [_incident(i, level) for i in report["incidents"]]
    if level == "all":
        out["files"] = [
            {**f, "path": placeholder(f["path"]), "broken": [(n, "hidden") for n, _ in f["broken"]]}
            for f in report["files"]
        ]
    else:
        # A parser's message can quote the line.
        out["files"] = [
            {**f, "broken": [(n, why.split(":", 1)[0]) for n, why in f["broken"]]}
            for f in report["files"]
        ]
    return out


def _incident(incident: Mapping[str, Any], level: str) -> dict[str, Any]:
    out = dict(incident)
    out["prompt"] = placeholder(incident["prompt"])
    out["request"] = placeholder(json.dumps(incident["request"], sort_keys=True, default=str))
    variants = [{**v, "text": placeholder(v["text"])} for v in incident["variants"]]
    if level == "all":
        out["model"] = placeholder(incident["model"] or "")
        for v in variants:
            v["source"] = placeholder(v["source"] or "")
            v["seen_under"] = {
                factor: {placeholder(value): n for value, n in counts.items()}
                for factor, counts in v["seen_under"].items()
            }
    out["variants"] = variants
    return out
