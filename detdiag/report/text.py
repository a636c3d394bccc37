"""The terminal report and the summary on stderr: ``rich.Text`` only, never markup strings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, Final

from detdiag.report import model
from detdiag.report.messages import Say, speaker
from detdiag.report.numbers import interval, k_of_n, number, share
from detdiag.report.phrases import is_chinese, localised
from detdiag.report.remedy_lines import listed_lines, tried_lines
from detdiag.report.safe import one_line, visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_STYLES: Final = {
    "cause": "bold red",
    "contributor": "yellow",
    "error": "bold magenta",
    "inconclusive": "yellow",
    "untested": "dim",
    "ruled_out": "green",
    "not_applicable": "dim",
}
_STATUS_STYLE: Final = {"attributed": "bold red", "clean": "bold green"}
_BAR_CELLS: Final = 24


def _console(file: IO[str], color: str) -> Console:
    from rich.console import Console

    return Console(
        file=file,
        force_terminal=True if color == "always" else None,
        no_color=True if color == "never" else None,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
    )


def can_show_unicode(file: IO[str]) -> bool:
    """True if the stream's encoding has the symbols of the layer lines."""
    try:
        "✗✓–█·".encode(getattr(file, "encoding", None) or "utf-8")
    except (UnicodeError, LookupError):
        return False
    return True


def print_summary(
    report: model.Report,
    *,
    quiet: bool = False,
    file: IO[str] | None = None,
    color: str = "auto",
    lang: str = "en",
) -> None:
    """One line a layer, what to do next, and the verdict sentence as the last line (stderr).

    ``quiet`` leaves the verdict sentence only. ``color`` is ``auto``, ``always`` or ``never``.
    """
    out = file or sys.stderr
    report = localised(report, lang)
    console = _console(out, color)
    say, unicode_ok = speaker(lang), can_show_unicode(out)
    if not quiet:
        for line in _summary_lines(report, say, unicode_ok):
            _print(console, line, unicode_ok)
    _print(console, verdict_line(report, say), unicode_ok)


def _print(console: Console, line: Text, unicode_ok: bool) -> None:
    from rich.text import Text

    if not unicode_ok:
        plain = line.plain.replace("–", "-").replace("…", "...").replace("·", "-")
        encoding = getattr(console.file, "encoding", None) or "ascii"
        line = Text(plain.encode(encoding, "backslashreplace").decode(encoding))
    console.print(line)


def verdict_line(report: model.Report, say: Say) -> Text:
    """The verdict sentence (a translated headline first where the sentence is only English)."""
    from rich.text import Text

    found = model.verdict(report)
    style = _STATUS_STYLE.get(str(found.get("status")), "bold yellow")
    sentence = visible(found.get("sentence"))
    headline = headline_text(report, say)
    if not in_language(sentence, say):
        sentence = f"{headline} {sentence}"
    return Text(sentence or headline, style=style)


def in_language(text: str, say: Say) -> bool:
    """Is a sentence of the report in the reader's language (it stays English where the catalogue
    has no translation of it)?"""
    return say("lang.id") == "en" or is_chinese(text)


def headline_text(report: model.Report, say: Say) -> str:
    """Status, layer and confidence in one short sentence, from the catalogue."""
    found = model.verdict(report)
    status = str(found.get("status"))
    if status == "attributed":
        return say(
            "headline.attributed",
            layer=visible(found.get("layer")),
            confidence=confidence_word(found.get("confidence"), say),
        )
    return say("headline.clean" if status == "clean" else "headline.inconclusive")


def confidence_word(value: Any, say: Say) -> str:
    return say(f"confidence.{value}") if value in ("confirmed", "likely", "suspected") else "–"


def _summary_lines(report: model.Report, say: Say, unicode_ok: bool) -> list[Text]:
    from rich.text import Text

    lines = [_header(report, say), Text("")]
    lines += [_layer_line(row, say, unicode_ok) for row in model.layers_in_walk_order(report)]
    lines.append(Text(""))
    place = model.first_divergence(report)
    if place:
        shown = ", ".join(f"{k} {one_line(v, 80)}" for k, v in place.items())
        lines.append(Text(f"{say('verdict.first_divergence')}: {shown}"))
    remedy = model.primary_remedy(report)
    if remedy and model.verdict(report).get("status") == "attributed":
        lines.append(Text(f"{say('verdict.do')}: {one_line(remedy.action, 300)}"))
        if remedy.command:
            lines += [
                Text("  " + one_line(part), style="bold") for part in remedy.command.split("\n")
            ]
    for step in model.next_steps(report)[:1]:
        lines.append(Text(f"{say('verdict.next')}: {one_line(step.get('why'), 300)}"))
        if step.get("command"):
            lines.append(Text("  " + one_line(step["command"]), style="bold"))
    return [*lines, *tried_lines(report, say)]


def _header(report: model.Report, say: Say) -> Text:
    from rich.text import Text

    tool = model.mapping(report.get("tool"))
    parts = [f"detdiag {visible(tool.get('version'))}", target_name(report)]
    digest = model.fingerprint_digest(report)
    if digest:
        parts.append(one_line(digest)[:12])
    count = report.get("observations")
    if isinstance(count, int):
        parts.append(say("header.observations_n", n=count))
    return Text("  ·  ".join(part for part in parts if part), style="bold")


def target_name(report: model.Report) -> str:
    target = model.mapping(report.get("target"))
    for key in ("name", "model", "case", "endpoint", "path"):
        if target.get(key):
            return one_line(target[key], 80)
    return ""


def _layer_line(layer: Mapping[str, Any], say: Say, unicode_ok: bool) -> Text:
    from rich.text import Text

    state = model.layer_state(layer)
    symbol = (model.SYMBOLS if unicode_ok else model.ASCII_SYMBOLS)[state]
    word = say(f"state.{state}")
    line = Text("  ")
    line.append(f"{symbol} ", style=_STYLES[state])
    line.append(f"{visible(layer.get('layer')):<9} ")
    line.append(f"{word:<15} ", style=_STYLES[state])
    line.append(layer_title(layer, say, limit=160))
    return line


def layer_title(layer: Mapping[str, Any], say: Say, limit: int | None = None) -> str:
    """The report's own title; where it is not in the reader's language, the catalogue's."""
    title = visible(layer.get("title"))
    if title and in_language(title, say):
        return one_line(title, limit)
    return say(f"layer_title.{model.layer_state(layer)}")


def render_text(report: model.Report, *, lang: str = "en", color: bool = False) -> str:
    """The whole report for a terminal of any width; ANSI colour only if asked for."""
    import io

    buffer = io.StringIO()
    console = _console(buffer, "always" if color else "never")
    for line in _report_lines(localised(report, lang), speaker(lang)):
        console.print(line)
    return buffer.getvalue()


def _report_lines(report: model.Report, say: Say) -> list[Text]:
    from rich.text import Text

    lines = _summary_lines(report, say, unicode_ok=True)
    if model.gate(report):
        from detdiag.report.checklist import checklist_lines, decision_line

        shown = [*checklist_lines(report, say, unicode_ok=True), decision_line(report)]
        lines = [*map(Text, shown), Text(""), *lines]
    ladder = model.rows(model.data(report).get("ladder"))
    if ladder:
        lines += [Text(""), Text(say("ladder.title"), style="bold")]
        width = max(len(one_line(r.get("step"), 40)) for r in ladder)
        lines += [_ladder_line(row, width, say) for row in ladder]
    for layer in model.layers_by_clump(report):
        found = [f for f in model.findings(layer) if f.get("outcome") in ("failed", "inconclusive")]
        if found:
            lines += [Text(""), Text(f"{visible(layer.get('layer'))}", style="bold")]
            for finding in found:
                lines += _finding_lines(finding, say)
    lines += _phase_lines(report, say)
    lines += listed_lines(report, say)
    change = model.verdict(report).get("would_change")
    if change:
        lines += [Text(""), Text(f"{say('verdict.would_change')}: {visible(change)}")]
    return [*lines, Text(""), verdict_line(report, say)]


def _phase_lines(report: model.Report, say: Say) -> list[Text]:
    """One line a phase of an endpoint walk."""
    from rich.text import Text

    found = model.rows(model.data(report).get("phases"))
    if not found:
        return []
    lines = [Text(""), Text(say("phases.caption"), style="bold")]
    for row in found:
        why = f": {one_line(row['reason'], 160)}" if row.get("reason") else ""
        lines.append(
            Text(
                f"  {one_line(row.get('phase'), 20):<12} {number(row.get('requests'))} "
                f"{say('head.requests')}, {one_line(row.get('state'), 20)}{why}"
            )
        )
    return lines


def _ladder_line(row: Mapping[str, Any], width: int, say: Say) -> Text:
    from rich.text import Text

    line = Text(f"  {one_line(row.get('step'), 40):<{width}}  ")
    left = share(row)
    if not row.get("tested", True) or left is None:
        note = one_line(row.get("note"), 80)
        return line.append(f"({say('ladder.untested')}{': ' + note if note else ''})", style="dim")
    filled = round(left * _BAR_CELLS)
    line.append("█" * filled, style="red")
    line.append("·" * (_BAR_CELLS - filled), style="dim")
    ends = interval(row.get("ci95"))
    return line.append(f"  {k_of_n(row)}{f'  [{ends}]' if ends else ''}")


def _finding_lines(finding: Mapping[str, Any], say: Say) -> list[Text]:
    from rich.text import Text

    subject = visible(finding.get("subject"))
    head = f"  {visible(finding.get('rule'))}{f' ({subject})' if subject else ''}: "
    lines = [Text(head + visible(finding.get("summary")))]
    if finding.get("where"):
        lines.append(Text(f"    {one_line(finding['where'])}", style="dim"))
    for row in model.rows(finding.get("evidence")):
        counted = k_of_n(row, "value") if row.get("n") is not None else number(row.get("value"))
        ends = interval(row.get("ci95"))
        unit = f" {visible(row.get('unit'))}" if row.get("unit") else ""
        lines.append(
            Text(
                f"    {visible(row.get('metric'))}: {counted}{unit}{f'  [{ends}]' if ends else ''}"
            )
        )
    remedy = model.mapping(finding.get("remedy"))
    if remedy.get("action"):
        lines.append(Text(f"    {say('verdict.do')}: {visible(remedy['action'])}"))
    if remedy.get("command"):
        lines += [
            Text(f"      {visible(part)}", style="bold")
            for part in str(remedy["command"]).split("\n")
        ]
    return lines
