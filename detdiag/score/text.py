"""The score on a terminal and as Markdown."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import IO, Any

from detdiag.report.messages import Say
from detdiag.report.safe import one_line, visible
from detdiag.report.tables.core import Table
from detdiag.score import findings, tables, words

_STYLE = {"reached": "bold green", "missed": "bold red", "measured": "bold"}


def print_summary(
    score: Mapping[str, Any], *, lang: str = "en", quiet: bool = False, file: IO[str] | None = None
) -> None:
    """Figures, what they do not say, and the sentence as the last line (stderr)."""
    from rich.text import Text

    from detdiag.report.text import _console, _print, can_show_unicode

    say, out = words.speaker(lang), file or sys.stderr
    console, unicode_ok = _console(out, "auto"), can_show_unicode(out)
    if not quiet:
        for line in lines(score, say):
            _print(console, Text(line), unicode_ok)
    style = _STYLE.get(score["summary"]["status"], "bold yellow")
    _print(console, Text(words.sentence(score, say), style=style), unicode_ok)


def lines(score: Mapping[str, Any], say: Say) -> list[str]:
    """The summary without its last line; hidden characters are spelled out."""
    target = one_line(score["target"].get("name"), 80)
    out = [f"detdiag {visible(score['tool']['version'])}  ·  {target}", ""]
    out += _aligned(tables.figures_table(score, say))
    if len(score["conditions"]) > 1:
        out += ["", *_aligned(tables.conditions_table(score, say))]
    if len(score["prompts"]) > 1:
        out += ["", *_aligned(tables.prompts_table(score, say), 12)]
    compared = findings.compare_lines(score, say)
    if compared:
        out += ["", *_aligned(tables.compare_table(score, say)), *compared]
    bound = words.bound_text(score, say)
    out += ["", *([f"{say('row.bound')}: {bound}"] if bound else [])]
    for name, found in (("row.left_out", score["left_out"]), ("row.cached", score["cache"])):
        out += [f"{say(name)}: {n} {one_line(why, 120)}" for why, n in found.items()]
    out += [f"{say('limits.title')}:"]
    return [*out, *(f"  - {line}" for line in words.limits(score, say)), ""]


def _aligned(table: Table, most: int = 40) -> list[str]:
    if not table:
        return []
    from rich.cells import cell_len

    rows = [table.heads, *table.rows[:most]]
    widths = [max(cell_len(row[i]) for row in rows) for i in range(len(table.heads))]
    out = []
    for row in rows:
        gaps = [" " * (widths[i] - cell_len(cell)) for i, cell in enumerate(row)]
        cells = [
            gaps[i] + cell if i in table.numeric else cell + gaps[i] for i, cell in enumerate(row)
        ]
        out.append("  " + "  ".join(cells).rstrip())
    left = len(table.rows) - most
    return [*out, *([f"  ... {left} more"] if left > 0 else [])]


def render_markdown(score: Mapping[str, Any], *, lang: str = "en") -> str:
    """For an issue or a chat: the sentence, the tables, the limits."""
    say = words.speaker(lang)
    out = [f"# {_md(words.sentence(score, say))}", ""]
    redact = score["method"].get("redact", "none")
    if redact in ("prompts", "all"):
        out += [f"> {say('redact.' + redact)}", ""]
    bound = words.bound_text(score, say)
    out += [f"**{say('row.bound')}:** {bound}", ""] if bound else []
    compared = findings.compare_lines(score, say)
    if compared:
        out += [f"## {say('compare.title')}", "", *map(_md, compared), ""]
        out += _md_table(tables.compare_table(score, say))
    sections = (
        ("figures", tables.figures_table, lambda s, y: y("figures.note")),
        ("conditions", tables.conditions_table, findings.conditions_finding),
        ("prompts", tables.prompts_table, findings.prompts_finding),
    )
    for name, table, finding in sections:
        out += [f"## {say(name + '.title')}", "", _md(finding(score, say)), ""]
        out += _md_table(table(score, say))
    survived = findings.survival_finding(score, say)
    out += [f"## {say('survival.title')}", "", survived, ""] if survived else []
    out += [f"## {say('limits.title')}", ""]
    out += [f"- {_md(line)}" for line in words.limits(score, say)]
    command = score["method"].get("command")
    if command:
        fence = "````" if "```" in command else "```"
        out += ["", f"## {say('reproduce.title')}", "", f"{fence}sh", visible(command), fence]
    return "\n".join([*out, ""])


def _md(value: Any) -> str:
    """Hostile text in a line or a table cell: nothing of it is markup."""
    text = visible(value)
    for char in "\\`*_[]<>|#":
        text = text.replace(char, "\\" + char)
    return text


def _md_table(table: Table) -> list[str]:
    if not table:
        return []
    rule = ["---:" if i in table.numeric else "---" for i in range(len(table.heads))]
    rows = ["| " + " | ".join(map(_md, row)) + " |" for row in (table.heads, *table.rows)]
    return [rows[0], "| " + " | ".join(rule) + " |", *rows[1:], ""]
