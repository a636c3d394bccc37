"""SARIF 2.1.0 for GitHub code scanning: what failed, each result at a file and a line.

A gate also lists what it only warns of, and keeps what is waived as a suppressed result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from detdiag.report.anchors import anchor
from detdiag.report.model import (
    Report,
    current_waiver,
    gate,
    gated_findings,
    layer_state,
    layers_in_walk_order,
    mapping,
    verdict,
)
from detdiag.report.safe import dump_json, visible

SCHEMA_URI: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVEL: Final = {"high": "error", "medium": "warning", "low": "note", "info": "note"}
_RANK: Final = {"confirmed": 95.0, "likely": 75.0, "suspected": 40.0}


def render_sarif(report: Report) -> str:
    """One run; passed and open layers are listed in ``run.properties`` (not as results)."""
    failed = gated_findings(report)
    rule_ids = sorted({_rule_id(f) for _, f in failed})
    tool = mapping(report.get("tool"))
    run = {
        "tool": {
            "driver": {
                "name": "detdiag",
                "version": visible(tool.get("version") or "0"),
                "rules": [_rule(rule, failed) for rule in rule_ids],
            }
        },
        "automationDetails": {"id": "detdiag/"},
        "columnKind": "utf16CodeUnits",
        "results": [_result(layer, f, rule_ids, report) for layer, f in failed],
        "properties": _properties(report),
    }
    log = {"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}
    return dump_json(log) + "\n"


def _rule_id(finding: Mapping[str, Any]) -> str:
    return visible(finding.get("rule")) or "detdiag.finding"


def _rule(rule_id: str, failed: list[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    layer, first = next((lay, f) for lay, f in failed if _rule_id(f) == rule_id)
    words = rule_id.replace(".", " ").replace("-", " ").replace("_", " ").split()
    remedy = visible(mapping(first.get("remedy")).get("action"))
    rule: dict[str, Any] = {
        "id": rule_id,
        "name": "".join(word.capitalize() for word in words),
        "shortDescription": {"text": f"{layer}: {' '.join(words[1:] or words)}"},
        "fullDescription": {
            "text": f"A cause of nondeterminism in the {layer} layer ({rule_id}). "
            f"`detdiag explain {rule_id}` tells what it means and how it is decided."
        },
        "defaultConfiguration": {"level": _level(first)},
        "properties": {"tags": ["nondeterminism", layer], "precision": "high"},
    }
    if remedy:
        rule["help"] = {"text": remedy}
    return rule


def _level(finding: Mapping[str, Any]) -> str:
    gated = {"error": "error", "warn": "warning"}.get(str(finding.get("level")))
    return gated or _LEVEL.get(str(finding.get("severity")), "warning")


def _result(
    layer: str, finding: Mapping[str, Any], rule_ids: list[str], report: Report
) -> dict[str, Any]:
    path, line = anchor(finding)
    rule_id = _rule_id(finding)
    subject = visible(finding.get("subject"))
    key = "\x00".join((rule_id, path, subject, visible(finding.get("surface"))))
    result: dict[str, Any] = {
        "ruleId": rule_id,
        "ruleIndex": rule_ids.index(rule_id),
        "level": _level(finding),
        "message": {"text": _message(finding)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(path), "uriBaseId": "%SRCROOT%"},
                    "region": {"startLine": line},
                }
            }
        ],
        "partialFingerprints": {"detdiag/v1": hashlib.sha256(key.encode()).hexdigest()[:32]},
        "properties": {"layer": layer},
    }
    confidence = verdict(report).get("confidence")
    if layer == verdict(report).get("layer") and confidence in _RANK:
        result["rank"] = _RANK[str(confidence)]
    if finding.get("baseline_state") in ("new", "unchanged", "updated", "absent"):
        result["baselineState"] = finding["baseline_state"]
    waiver = current_waiver(finding)
    if waiver:
        result["suppressions"] = [
            {
                "kind": "external",
                "status": "accepted",
                "justification": f"{visible(waiver.get('reason'))} "
                f"(owner {visible(waiver.get('owner'))}, until {visible(waiver.get('expires'))})",
            }
        ]
    return result


def _message(finding: Mapping[str, Any]) -> str:
    text = visible(finding.get("summary")) or _rule_id(finding)
    remedy = visible(mapping(finding.get("remedy")).get("action"))
    return f"{text} Fix: {remedy}" if remedy else text


def _properties(report: Report) -> dict[str, Any]:
    found = verdict(report)
    keys = ("status", "layer", "rule", "confidence", "divergence", "sentence")
    decided = {k: visible(gate(report)[k]) for k in ("profile", "decision") if gate(report).get(k)}
    return {
        **({"gate": decided} if decided else {}),
        "verdict": {k: visible(found[k]) for k in keys if found.get(k) is not None},
        "layers": {
            visible(layer.get("layer")): layer_state(layer)
            for layer in layers_in_walk_order(report)
        },
    }
