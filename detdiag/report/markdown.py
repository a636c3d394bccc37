"""Markdown: the whole report, or the postmortem, checklist and step-summary styles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.report import model, tables
from detdiag.report.messages import Say, speaker
from detdiag.report.phrases import localised
from detdiag.report.safe import looks_like_command, one_line, visible

STYLES: Final = ("report", "postmortem", "checklist", "github")
_SPECIAL: Final = re.compile(r"([\\`*\[|~$]|(?<![^\W_])_|_(?![^\W_]))")
_LEADING: Final = re.compile(r"^(\s*)([-+>=#])", re.M)
_NUMBERED: Final = re.compile(r"^(\s*\d{1,9})([.)])(?=\s|$)", re.M)


def md(value: Any) -> str:
    """Any text as inert Markdown: no emphasis, link, image, table cell or HTML from it."""
    text = visible(value)
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = _SPECIAL.sub(r"\\\1", text)
    text = _NUMBERED.sub(r"\1\\\2", _LEADING.sub(r"\1\\\2", text))
    return re.sub(r"(?i)\b(https?|ftp|mailto|javascript|data):", r"\1&#58;", text).replace(
        "@", "&#64;"
    )


def code_span(value: Any) -> str:
    """One line as a code span, with a fence longer than any run of backticks in it."""
    text = one_line(value)
    if not text:
        return ""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def command_block(value: Any) -> str:
    """A command as a fenced block, advice in words as a sentence."""
    return code_block(value) if looks_like_command(value) else md(value)


def code_block(value: Any, language: str = "sh") -> str:
    """A fenced block; the fence is longer than any run of backticks inside."""
    text = visible(value, keep="\n\t").rstrip("\n")
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def md_table(table: tables.Table) -> str:
    """A pipe table under its caption; empty for an empty table."""
    if not table:
        return ""
    rule = ["---:" if i in table.numeric else "---" for i in range(len(table.heads))]
    lines = [
        "| " + " | ".join(md(h) for h in table.heads) + " |",
        "| " + " | ".join(rule) + " |",
        *("| " + " | ".join(md(cell) or " " for cell in row) + " |" for row in table.rows),
    ]
    return "\n".join(lines)


def render_markdown(report: model.Report, *, lang: str = "en", style: str | None = None) -> str:
    """Markdown in one of :data:`STYLES` (``report`` by default)."""
    report = localised(report, lang)
    if style in (None, "report"):
        return _full(report, speaker(lang))
    if style == "postmortem":
        from detdiag.report.postmortem import render_postmortem

        return render_postmortem(report, lang=lang)
    if style == "checklist":
        from detdiag.report.checklist import render_checklist

        return render_checklist(report, lang=lang)
    if style == "github":
        from detdiag.report.github import render_step_summary

        return render_step_summary(report, lang=lang)
    raise DetdiagError(f"unknown style {style!r}", tip="known styles: " + ", ".join(STYLES))


def _full(report: model.Report, say: Say) -> str:
    from detdiag.report.text import headline_text, in_language, target_name

    found = model.verdict(report)
    sentence = visible(found.get("sentence"))
    own = sentence and in_language(sentence, say)
    headline = sentence if own else headline_text(report, say)
    parts = [f"# {md(headline)}"]
    if sentence and headline != sentence:
        parts.append(md(sentence))
    if model.redaction(report) != "none":
        parts.append(f"> {say('redact.' + model.redaction(report))}")
    if target_name(report):
        parts.append(f"{say('header.target')}: {code_span(target_name(report))}")
    if model.gate(report):
        from detdiag.report.checklist import checklist_parts

        parts += [f"## {say('checklist.title')}", "\n".join(checklist_parts(report, say))]
    parts += _verdict_parts(report, say)
    parts += _section(say("ladder.title"), [tables.ladder_table(report, say)])
    parts.append(f"## {say('layers.title')}")
    parts.append(md_table(_layers_table(report, say)))
    for layer in model.layers_by_clump(report):
        parts += _layer_parts(layer, say)
    parts += _numbers_parts(report, say)
    parts += _remedy_parts(report, say)
    parts += _closing_parts(report, say)
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict_parts(report: model.Report, say: Say) -> list[str]:
    found = model.verdict(report)
    parts: list[str] = []
    place = model.first_divergence(report)
    if place:
        shown = ", ".join(f"{k} {code_span(v)}" for k, v in place.items())
        parts.append(f"**{say('verdict.first_divergence')}:** {shown}")
    if found.get("confounded"):
        from detdiag.report.views.verdict import confounded_text

        parts.append(f"**{say('verdict.confounded')}:** {md(confounded_text(found['confounded']))}")
    for key in ("ruled_out", "untested"):
        names = model.layer_ids(found.get(key))
        if names:
            parts.append(f"**{say('verdict.' + key)}:** {', '.join(md(n) for n in names)}")
    for step in model.next_steps(report):
        parts.append(f"**{say('verdict.next')}:** {md(step.get('why'))}")
        if step.get("command"):
            parts.append(command_block(step["command"]))
    if found.get("would_change"):
        parts.append(f"**{say('verdict.would_change')}:** {md(found['would_change'])}")
    return parts


def _section(title: str, found: list[tables.Table]) -> list[str]:
    filled = [t for t in found if t]
    return [f"## {title}", *(md_table(t) for t in filled)] if filled else []


def _state_text(layer: Mapping[str, Any], say: Say) -> str:
    state = model.layer_state(layer)
    return f"{model.SYMBOLS[state]} {say('state.' + state)}"


def _layers_table(report: model.Report, say: Say) -> tables.Table:
    from detdiag.report.text import layer_title

    return tables.Table(
        say("layers.title"),
        (say("head.layer"), say("head.state"), say("head.finding")),
        tuple(
            (
                visible(layer.get("layer")),
                _state_text(layer, say),
                layer_title(layer, say, 200),
            )
            for layer in model.layers_by_clump(report)
        ),
    )


def _layer_parts(layer: Mapping[str, Any], say: Say) -> list[str]:
    shown = [
        f for f in model.findings(layer) if f.get("outcome") in ("failed", "inconclusive", "error")
    ]
    parts = [f"### {md(layer.get('layer'))}"] if shown else []
    for finding in shown:
        subject = f" · {code_span(finding.get('subject'))}" if finding.get("subject") else ""
        where = f" ({code_span(finding['where'])})" if finding.get("where") else ""
        parts.append(
            f"{code_span(finding.get('rule'))}{subject}{where}: {md(finding.get('summary'))}"
        )
        parts.append(md_table(tables.evidence_table(finding, say)))
    return parts


def _numbers_parts(report: model.Report, say: Say) -> list[str]:
    made = [
        tables.contrasts_table,
        tables.controls_table,
        tables.margins_table,
        tables.heatmap_table,
        tables.sweep_table,
        tables.routing_table,
        tables.operators_table,
        tables.toggles_table,
        tables.params_table,
        tables.input_table,
        tables.tokens_table,
        tables.fingerprint_table,
        tables.phases_table,
        tables.capabilities_table,
    ]
    parts: list[str] = []
    for make in made:
        table = make(report, say)
        if table:
            parts += [f"### {md(table.caption)}", md_table(table)]
    return [f"## {say('markdown.numbers')}", *parts] if parts else []


def _remedy_parts(report: model.Report, say: Say) -> list[str]:
    boxes = model.remedy_boxes(report)
    if not boxes:
        return []
    parts = [f"## {say('remedies.title')}"]
    for box, found in boxes:
        parts.append(f"### {say('remedies.' + box)}")
        for place, remedy in enumerate(found, start=1):
            parts += _one_remedy(place, remedy, say)
    trials = tables.trials_table(report, say)
    if trials:
        parts += [f"### {say('remedies.tried')}", md(trials.caption), md_table(trials)]
    left = tables.skipped_lines(report)
    if left:
        parts += [f"{say('remedies.not_tried')}:", "\n".join(f"- {md(line)}" for line in left)]
    return parts


def _one_remedy(place: int, remedy: model.RemedyRow, say: Say) -> list[str]:
    cost = f" ({say('remedy.cost')}: {md(remedy.cost)})" if remedy.cost else ""
    parts = [f"{place}. {md(remedy.action)}{cost}"]
    if remedy.command:
        parts.append(command_block(remedy.command))
    named = [
        ("remedy.measured", tables.measured_text(remedy.measured, say)),
        ("remedies.figures", remedy.arithmetic),
        ("remedy.source", remedy.source),
    ]
    return parts + [f"{say(key)}: {md(text)}" for key, text in named if text]


def _closing_parts(report: model.Report, say: Say) -> list[str]:
    parts = [f"## {say('method.title')}"]
    limits = model.mapping(report.get("method")).get("limits")
    lines = limits if isinstance(limits, (list, tuple)) else []
    parts.append("\n".join(f"- {md(line)}" for line in [*lines, say("method.absence")]))
    command, digest = model.reproduce_command(report), model.record_sha256(report)
    if command or digest:
        parts.append(f"## {say('reproduce.title')}")
    if command:
        parts.append(code_block(command))
    if digest:
        parts.append(f"{say('reproduce.record')}: {code_span(digest)}")
    return parts
