"""The elimination ladder and the layer sections of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detdiag.report import model, tables
from detdiag.report.checklist import outcome_word
from detdiag.report.messages import Say, has
from detdiag.report.numbers import interval, interval_ends, k_of_n, share
from detdiag.report.safe import one_line, visible
from detdiag.report.text import layer_title


def ladder_view(report: model.Report, say: Say) -> dict[str, Any]:
    """Bars in percent; ``stops`` marks the first tested rung that ends the divergence."""
    out: list[dict[str, Any]] = []
    previous: float | None = None
    stopped = False
    for row in model.rows(model.data(report).get("ladder")):
        left = share(row)
        tested = bool(row.get("tested", True)) and left is not None
        ends = interval_ends(row)
        stops = tested and not stopped and left == 0 and previous is not None and previous > 0
        stopped = stopped or stops
        if tested:
            previous = left
        out.append(
            {
                "step": one_line(tables.phrase(row.get("step"), say), 80),
                "layer": visible(row.get("layer")),
                "tested": tested,
                "width": _percent(left) if tested and left else None,
                "ci": (_percent(ends[0]), _percent(ends[1] - ends[0])) if tested and ends else None,
                "count": k_of_n(row) if tested else say("ladder.untested"),
                "interval": interval(row.get("ci95")) if tested else "",
                "stops": stops,
                "note": one_line(tables.phrase(row.get("note"), say), 200),
            }
        )
    return {"rows": out, "finding": _ladder_finding(out, say)}


def _percent(share_: float) -> str:
    return f"{100 * share_:.2f}".rstrip("0").rstrip(".")


def _ladder_finding(found: Sequence[Mapping[str, Any]], say: Say) -> str:
    stop = next((row for row in found if row["stops"]), None)
    if stop is not None:
        before = [r for r in found[: list(found).index(stop)] if r["tested"]][-1]
        return say("ladder.found", step=stop["step"], after=stop["count"], before=before["count"])
    tested = [row for row in found if row["tested"]]
    if not tested:
        return say("ladder.none_tested")
    if all(not row["width"] for row in tested):
        return say("ladder.clean")
    return say("ladder.not_stopped", count=tested[-1]["count"])


def layer_views(report: model.Report, say: Say) -> list[dict[str, Any]]:
    probes = {
        p.get("layer"): p for p in model.rows(model.mapping(report.get("method")).get("probes"))
    }
    out: list[dict[str, Any]] = []
    for layer in model.layers_by_clump(report):
        state, name = model.layer_state(layer), str(layer.get("layer"))
        reason = layer.get("reason") or model.mapping(probes.get(name)).get("reason")
        out.append(
            {
                "id": "".join(c if c.isalnum() else "-" for c in name),
                "name": visible(name),
                "state": state,
                "symbol": model.SYMBOLS[state],
                "word": say(f"state.{state}"),
                "title": layer_title(layer, say),
                "question": _question(name, say),
                "reason": visible(reason),
                "empty": "" if reason else say(f"layer_title.{state}"),
                "findings": [_finding_view(f, say) for f in model.findings(layer)],
            }
        )
    return out


def _question(name: str, say: Say) -> str:
    return say(f"question.{name}") if has(f"question.{name}") else ""


def _finding_view(finding: Mapping[str, Any], say: Say) -> dict[str, Any]:
    severity = finding.get("severity")
    failed = finding.get("outcome") == "failed"
    return {
        "rule": visible(finding.get("rule")),
        "subject": one_line(finding.get("subject"), 120),
        "word": outcome_word(finding.get("outcome"), say),
        "severity": say(f"severity.{severity}") if failed and has(f"severity.{severity}") else "",
        "where": one_line(finding.get("where"), 200),
        "summary": visible(finding.get("summary")),
        "evidence": tables.evidence_table(finding, say),
        "remedy": {
            k: model.mapping(finding.get("remedy")).get(k) for k in ("action", "command", "cost")
        }
        if finding.get("remedy")
        else None,
    }
