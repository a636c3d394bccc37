"""The closing sections: diffs, checklist, method and limits, glossary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.report import model, tables
from detdiag.report.checklist import checklist_table, decision, decision_reasons, notes
from detdiag.report.messages import Say
from detdiag.report.numbers import number, seconds
from detdiag.report.safe import dump_json, one_line, visible


def diff_notes(report: model.Report, say: Say) -> list[str]:
    """What was compared, and the notes of each comparison."""
    lines: list[str] = []
    for diff in map(model.mapping, model.table_everywhere(report, "input_diff")):
        if diff.get("left") or diff.get("right"):
            lines.append(f"{one_line(diff.get('left'), 200)} ↔ {one_line(diff.get('right'), 200)}")
        notes = diff.get("notes")
        lines += [visible(n) for n in notes] if isinstance(notes, (list, tuple)) else []
        after = diff.get("equal_after")
        if isinstance(after, (list, tuple)) and after:
            lines.append(say("input_diff.equal_after", steps=", ".join(visible(a) for a in after)))
    return list(dict.fromkeys(lines))[:12]


def fingerprint_all(report: model.Report, say: Say) -> tables.Table | None:
    """Every field of the fingerprint, folded away; nested objects by dotted names."""
    flat = list(_flatten(model.mapping(report.get("fingerprint"))))[:400]
    if not flat:
        return None
    return tables.Table(
        say("diffs.fingerprint"),
        (say("head.field"), say("head.value")),
        tuple((one_line(k, 120), one_line(v, 200)) for k, v in flat),
    )


def _flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping):
            out += _flatten(item, f"{name}.")
        elif isinstance(item, (list, tuple)):
            out.append((name, dump_json(item, indent=None)))
        else:
            out.append((name, number(item)))
    return out


def checklist_view(report: model.Report, say: Say) -> dict[str, Any]:
    return {
        "decision": decision(report),
        "why": decision_reasons(report, say),
        "table": checklist_table(report, say),
        "notes": notes(report),
    }


def method_view(report: model.Report, say: Say) -> tuple[list[tuple[str, str]], list[str]]:
    """``(name, value)`` of how it was measured, and the limits as sentences."""
    method = model.mapping(report.get("method"))
    target = model.mapping(report.get("target"))
    out = [
        (
            say("method.conditions"),
            tables.condition_text(method.get("conditions")) if method.get("conditions") else "",
        ),
        (say("method.budget"), seconds(method.get("budget_s")) if method.get("budget_s") else ""),
        (say("method.skipped"), _skipped(method.get("skipped"))),
        (say("method.ignored"), _skipped(method.get("ignored"))),
        (
            say("method.target"),
            tables.condition_text(
                {k: v for k, v in target.items() if not isinstance(v, (dict, list, tuple))}
            )
            if target
            else "",
        ),
    ]
    for probe in model.rows(method.get("probes")):
        if probe.get("state") != "done":
            reason = f": {visible(probe['reason'])}" if probe.get("reason") else ""
            out.append(
                (
                    f"{say('method.probe')} {visible(probe.get('layer'))}",
                    f"{visible(probe.get('state'))}{reason}",
                )
            )
    limits = method.get("limits")
    lines = [visible(line) for line in limits] if isinstance(limits, (list, tuple)) else []
    return [(k, v) for k, v in out if v and v != "–"], [*lines, say("method.absence")]


def _skipped(value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return visible(value)
    return "; ".join(tables.condition_text(v) for v in value)


def glossary(say: Say) -> list[tuple[str, str]]:
    words = (
        "layer",
        "factor",
        "contrast",
        "control",
        "margin",
        "noise_floor",
        "ulp",
        "interval",
        "confirmed",
        "likely",
        "suspected",
        "untested",
    )
    return [(say(f"glossary.{w}.word"), say(f"glossary.{w}.text")) for w in words]
