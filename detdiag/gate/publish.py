"""Where the gate goes: report files, the terminal, and GitHub's annotation and step summary."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detdiag.errors import Exit
from detdiag.gate.model import Gate


@dataclass(frozen=True, slots=True)
class Sinks:
    """Outputs of one check."""

    outputs: tuple[Path, ...]
    lang: str = "en"
    redact: str = "none"
    plotly: str = "embed"
    json: bool = False
    quiet: bool = False
    record: Path | None = None


def exit_code(gate: Gate) -> Exit:
    """0 GO, 1 NO-GO, 4 INCONCLUSIVE; 3 where a required layer crashed and nothing else failed."""
    if gate.decision == "NO-GO":
        return Exit.ATTRIBUTED
    if gate.decision == "GO":
        return Exit.CLEAN
    return Exit.INTERNAL if gate.crashed else Exit.INCONCLUSIVE


def publish(report: Mapping[str, Any], sinks: Sinks) -> None:
    """Write every file, then the terminal lines, then what GitHub Actions reads."""
    from detdiag.report import write_outputs
    from detdiag.report.outputs import hide_record
    from detdiag.report.redact import redact

    if sinks.record is not None:
        hide_record(sinks.record, sinks.redact)
    outputs = [*sinks.outputs, *([Path("-")] if sinks.json else [])]
    written = write_outputs(
        report,
        [p for p in outputs if p != sinks.record],
        stdout_kind="json" if sinks.json else "text",
        lang=sinks.lang,
        redact=sinks.redact,
        plotly=sinks.plotly,
        record=sinks.record,
    )
    shown = redact(report, sinks.redact)
    on_stdout = Path("-") in outputs
    _github(shown, sinks.lang, on_stdout)
    if not sinks.quiet:
        kept = [] if sinks.record is None else [sinks.record]
        for path in [p for p, _ in written] + kept:
            print(f"wrote {path}", file=sys.stderr)
    _terminal(shown, sinks)


def _terminal(report: Mapping[str, Any], sinks: Sinks) -> None:
    from detdiag.report.checklist import checklist_lines, decision_line
    from detdiag.report.messages import speaker
    from detdiag.report.phrases import localised
    from detdiag.report.text import can_show_unicode

    say, unicode_ok = speaker(sinks.lang), can_show_unicode(sys.stderr)
    report = localised(report, sinks.lang)
    lines = [] if sinks.quiet else list(checklist_lines(report, say, unicode_ok))
    encoding = sys.stderr.encoding or "utf-8"
    for line in [*lines, decision_line(report)]:
        print(line.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)


def _github(report: Mapping[str, Any], lang: str, on_stdout: bool) -> None:
    """One annotation line and the step summary, in a GitHub Actions job only."""
    from detdiag.report.github import render_annotation, render_step_summary

    if os.environ.get("GITHUB_ACTIONS") == "true":
        # The runner reads workflow commands from both streams; stdout may hold a report.
        stream = sys.stderr if on_stdout else sys.stdout
        print(render_annotation(report), end="", file=stream, flush=True)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(render_step_summary(report, lang))
        except OSError as error:
            print(f"detdiag: cannot write the step summary: {error.strerror}", file=sys.stderr)
