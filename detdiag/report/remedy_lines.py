"""Remedies in a terminal: what was tried, and the two lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detdiag.report import model, tables
from detdiag.report.messages import Say
from detdiag.report.numbers import k_of_n
from detdiag.report.safe import one_line, visible

if TYPE_CHECKING:
    from rich.text import Text

_STYLES = {"helped": "green", "error": "red"}


def tried_lines(report: model.Report, say: Say) -> list[Text]:
    """One line a trial, under what they compare; empty where none was asked for."""
    from rich.text import Text

    from detdiag.report.tables.remedies import compared, outcome_word

    found = tables.trials_of(report)
    if not found:
        return []
    lines = [Text(""), Text(say("remedies.tried"), style="bold")]
    before = model.mapping(found.get("before"))
    if before.get("n") is not None:
        lines.append(Text(f"  {say('trials.as_is')}: {k_of_n(before)}, {compared(found, say)}"))
    for row in model.rows(found.get("trials")):
        word = outcome_word(row, say)
        line = Text("  ").append(f"{word:<11}", style=_STYLES.get(str(row.get("outcome")), ""))
        rest = tables.measured_text(row, say).removeprefix(word).removeprefix(", ")
        note = f" ({one_line(row['note'], 120)})" if row.get("note") and "n" in _after(row) else ""
        lines.append(line.append(f" {one_line(row.get('title'), 60)}: {rest}{note}"))
    left = tables.skipped_lines(report)
    if left:
        lines.append(Text(f"  {say('remedies.not_tried')}: " + "; ".join(left), style="dim"))
    return lines


def _after(row: model.Report) -> model.Report:
    return model.mapping(row.get("after"))


def listed_lines(report: model.Report, say: Say) -> list[Text]:
    """Both lists in full: action, cost, arithmetic, command."""
    from rich.text import Text

    lines: list[Text] = []
    for box, found in model.remedy_boxes(report) if report.get("remedies") else ():
        lines += [Text(""), Text(say(f"remedies.{box}"), style="bold")]
        for place, row in enumerate(found, start=1):
            cost = f" ({say('remedy.cost')}: {visible(row.cost)})" if row.cost else ""
            lines.append(Text(f"  {place}. {visible(row.action)}{cost}"))
            if row.measured:
                tried = tables.measured_text(row.measured, say)
                lines.append(Text(f"     {say('remedy.measured')}: {tried}"))
            if row.arithmetic:
                lines.append(Text(f"     {say('remedies.figures')}: {visible(row.arithmetic)}"))
            lines += [
                Text(f"     {visible(part)}", style="bold")
                for part in (row.command or "").split("\n")
                if part
            ]
    return lines
