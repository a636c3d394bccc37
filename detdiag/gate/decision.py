"""From checklist rows to GO, NO-GO or INCONCLUSIVE, with the reasons and the way on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from detdiag.gate.model import OPEN, Decision, Gate, Row
from detdiag.gate.settings import Settings
from detdiag.gate.values import seconds
from detdiag.report.model import mapping


def decide_gate(
    report: Mapping[str, Any],
    settings: Settings,
    items: Sequence[Row],
    notes: Sequence[str],
    live: bool,
) -> Gate:
    """Any failed row is NO-GO; else any open required row is INCONCLUSIVE; else GO."""
    failed = [row for row in items if row.outcome == "failed"]
    blocking = [row for row in items if row.required and row.outcome in OPEN]
    settled = [row for row in items if row.outcome in ("passed", "warned", "waived")]
    decision: Decision
    if failed:
        decision, why = "NO-GO", [_reason(row) for row in failed]
    elif blocking:
        decision, why = "INCONCLUSIVE", [_open_reason(row) for row in blocking]
    elif not settled:
        decision, why = "INCONCLUSIVE", ["nothing was checked"]
    else:
        decision, why = "GO", [_go_reason(items, live)]
    return Gate(
        str(settings.get("profile")),
        decision,
        tuple(why),
        tuple(items),
        tuple(notes),
        str(settings.get("fail-on", "bitwise")),
        tuple(_next(report, settings, blocking)) if decision == "INCONCLUSIVE" else (),
        crashed=any(row.outcome == "error" for row in blocking),
    )


def _next(
    report: Mapping[str, Any], settings: Settings, blocking: Sequence[Row]
) -> Iterator[dict[str, str]]:
    """The commands that would settle the open rows, each once."""
    command = str(mapping(report.get("method")).get("command") or "detdiag check")
    layers = {row.layer for row in blocking}
    if "version" in layers and not settings.get("baseline"):
        model = settings.get("model") or "MODEL"
        yield {
            "why": "take the fingerprint of the signed-off model and check against it",
            "command": f"detdiag fingerprint --model {model} -o signed-off.json && "
            f"{command} --baseline signed-off.json",
        }
    if any(row.outcome == "error" for row in blocking):
        yield {"why": "see the trace of the crash", "command": f"DETDIAG_DEBUG=1 {command}"}
    measured = settings.get("model") or settings.get("endpoint")
    if measured and layers & {None, "batch", "operator", "decode", "moe"}:
        more = f"{3 * seconds(str(settings.get('budget', '3m'))):.0f}s"
        yield {"why": "give the runs more time", "command": f"{command} --budget {more}"}
    elif settings.get("case") and None in layers:
        yield {
            "why": "record more repeats of one prompt under one condition",
            "command": "add the observations to observations.jsonl, then " + command,
        }


def _reason(row: Row) -> str:
    where = f" [{row.where}]" if row.where else ""
    return f"{row.item}: {row.evidence.rstrip('.')}{where}"


def _open_reason(row: Row) -> str:
    word = {"error": "crashed", "skipped": "not tested"}.get(row.outcome, "not settled")
    return f"{row.item} {word}: {row.evidence.rstrip('.')}"


def _go_reason(items: Sequence[Row], live: bool) -> str:
    parts = []
    for word, outcome in (("passed", "passed"), ("with warnings", "warned"), ("waived", "waived")):
        names = [row.layer or row.item for row in items if row.outcome == outcome]
        if names:
            parts.append(f"{word}: {', '.join(dict.fromkeys(names))}")
    repeats = next((row.evidence for row in items if row.item == "repeats"), None)
    tail = f"; {repeats}" if repeats and live else ""
    return "; ".join(parts) + (tail if live else "; files only, no model was run")
