"""GitHub Actions: one annotation line and the Markdown of the step summary."""

from __future__ import annotations

from typing import Final

from detdiag.report.anchors import anchor
from detdiag.report.model import Report, failed_findings, gate, rows, verdict
from detdiag.report.safe import visible

SUMMARY_CAP_BYTES: Final = 1_000_000
"""GitHub refuses a step summary above 1 MiB."""


def render_annotation(report: Report) -> str:
    """One workflow command: an error, a warning (inconclusive) or a notice (clean).

    One only: GitHub shows 10 annotations a step, and one cause is one message.
    """
    if gate(report):
        return _gate_annotation(report)
    found = verdict(report)
    failed = failed_findings(report)
    own = [f for layer, f in failed if layer == found.get("layer")] or [f for _, f in failed]
    path, line = anchor(own[0] if own else {})
    command = {"attributed": "error", "clean": "notice"}.get(str(found.get("status")), "warning")
    title = f"detdiag: {found.get('layer') or found.get('status')}"
    fields = f"file={_property(path)},line={line},title={_property(visible(title))}"
    return f"::{command} {fields}::{_message(visible(found.get('sentence')))}\n"


def _gate_annotation(report: Report) -> str:
    """The decision with its reasons, at the place of the first one that has a place."""
    found = gate(report)
    decision = visible(found.get("decision"))
    failed = [
        r for r in rows(found.get("items")) if r.get("outcome") == "failed" and r.get("where")
    ]
    path, line = anchor(failed[0] if failed else {})
    command = {"NO-GO": "error", "GO": "notice"}.get(decision, "warning")
    fields = f"file={_property(path)},line={line},title={_property(f'detdiag check: {decision}')}"
    why = "; ".join(visible(line) for line in found.get("why") or ())
    return f"::{command} {fields}::{_message(why)}\n"


def _message(text: str) -> str:
    """Workflow-command data: ``%``, CR and LF are percent-escaped."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")


def render_step_summary(report: Report, lang: str = "en") -> str:
    """The Markdown report, cut at a line below GitHub's size cap."""
    from detdiag.report.markdown import render_markdown

    text = render_markdown(report, lang=lang)
    if len(text.encode()) <= SUMMARY_CAP_BYTES:
        return text
    cut = text.encode()[:SUMMARY_CAP_BYTES].decode("utf-8", "ignore")
    return cut[: cut.rfind("\n") + 1] + "\n…\n"
