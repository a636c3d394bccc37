"""The release checklist: item, required or not, outcome, evidence, waiver, and the decision.

``detdiag check`` writes its gate as ``report["gate"]``: ``{"profile", "decision": "GO" | "NO-GO" |
"INCONCLUSIVE", "why": [...], "items": [{"item", "layer", "required", "outcome", "evidence",
"waiver": {"reason", "owner", "expires", "expired"}}]}``. Without one, the checklist is derived
from the layers: every layer required, and no waivers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from detdiag.report import model
from detdiag.report.messages import Say, has, speaker
from detdiag.report.numbers import interval, k_of_n, number
from detdiag.report.safe import one_line, visible
from detdiag.report.tables import Table

DECISIONS: Final = ("GO", "NO-GO", "INCONCLUSIVE")
MARKS: Final = {
    "passed": ("✓", "+"),
    "failed": ("✗", "x"),
    "error": ("✗", "x"),
    "warned": ("!", "!"),
    "waived": ("w", "w"),
    "inconclusive": ("?", "?"),
    "skipped": ("–", "-"),
    "not_applicable": ("·", "."),
}


def decision(report: model.Report) -> str:
    """The gate's decision; without a gate, a cause is NO-GO and GO needs every layer passed."""
    given = model.mapping(report.get("gate")).get("decision")
    if given in DECISIONS:
        return str(given)
    status = model.verdict(report).get("status")
    if status == "attributed":
        return "NO-GO"
    return "GO" if status == "clean" and not open_layers(report) else "INCONCLUSIVE"


def open_layers(report: model.Report) -> list[str]:
    """Layers that are neither ruled out nor without meaning for the target."""
    return [
        str(layer.get("layer"))
        for layer in model.layers_in_walk_order(report)
        if model.layer_state(layer) not in ("ruled_out", "not_applicable")
    ]


def decision_reasons(report: model.Report, say: Say) -> str:
    why = model.mapping(report.get("gate")).get("why")
    if isinstance(why, str):
        return visible(why)
    if isinstance(why, (list, tuple)) and why:
        return "; ".join(visible(line) for line in why)
    sentence = visible(model.verdict(report).get("sentence"))
    if model.verdict(report).get("status") == "clean" and open_layers(report):
        names = ", ".join(visible(n) for n in open_layers(report))
        return f"{sentence} {say('checklist.open', layers=names)}"
    return sentence


def checklist_table(report: model.Report, say: Say) -> Table:
    gate_items = model.rows(model.mapping(report.get("gate")).get("items"))
    items = gate_items or [_item(layer, say) for layer in model.layers_in_walk_order(report)]
    heads = ("head.item", "head.required", "head.outcome", "head.evidence", "head.waiver")
    return Table(
        say("checklist.caption"),
        tuple(say(h) for h in heads),
        tuple(
            (
                one_line(item_name(item, say), 120),
                say("yes" if item.get("required", True) else "no"),
                outcome_word(item.get("outcome"), say),
                one_line(item.get("evidence"), 200) or "–",
                waiver_text(item.get("waiver"), say),
            )
            for item in items
        ),
    )


def notes(report: model.Report) -> list[str]:
    """What the gate remarks beside its rows: unused and expired waivers."""
    found = model.mapping(report.get("gate")).get("notes")
    return [visible(note) for note in found] if isinstance(found, (list, tuple)) else []


def steps(report: model.Report) -> list[Mapping[str, Any]]:
    """What would settle an inconclusive gate; without a gate, the verdict's next experiment."""
    if model.gate(report):
        return model.rows(model.gate(report).get("next"))
    return model.next_steps(report)[:1]


def item_name(item: Mapping[str, Any], say: Say) -> str:
    """A layer or rule as it is; the gate's own rows in the reader's language."""
    name = str(item.get("item") or item.get("layer") or "")
    return say(f"item.{name}") if has(f"item.{name}") else name


def outcome_word(value: Any, say: Say) -> str:
    key = f"outcome.{value}"
    return say(key) if has(key) else visible(value) or "–"


def waiver_text(value: Any, say: Say) -> str:
    waiver = model.mapping(value)
    if not waiver:
        return "–"
    text = say(
        "checklist.waiver",
        reason=one_line(waiver.get("reason"), 120),
        owner=one_line(waiver.get("owner"), 60),
        expires=one_line(waiver.get("expires"), 30),
    )
    return f"{text} ({say('checklist.expired')})" if waiver.get("expired") else text


def checklist_lines(report: model.Report, say: Say, unicode_ok: bool) -> Iterator[str]:
    """One line an item, its waiver under it, then the notes."""
    gate = model.gate(report)
    items = model.rows(gate.get("items"))
    width = min(48, max((len(visible(row.get("item"))) for row in items), default=8))
    yield f"detdiag check · {visible(gate.get('profile'))}"
    yield ""
    for row in items:
        mark = MARKS.get(str(row.get("outcome")), ("?", "?"))[0 if unicode_ok else 1]
        need = say("checklist.required") if row.get("required") else say("checklist.optional")
        word = outcome_word(row.get("outcome"), say)
        yield (
            f"  {mark} {visible(item_name(row, say)):<{width}}  {need:<8}  {word:<14} "
            f"{one_line(row.get('evidence'), 160)}"
        ).rstrip()
        if row.get("waiver"):
            yield f"      {say('head.waiver')}: {waiver_text(row['waiver'], say)}"
    for note in notes(report):
        yield f"  {say('head.note')}: {note}"
    for step in steps(report):
        yield f"  {say('verdict.next')}: {visible(step.get('why'))}"
        yield f"    {visible(step.get('command'))}"
    yield ""


def decision_line(report: model.Report) -> str:
    """``NO-GO: ...``: the last line, and the message of the annotation."""
    gate = model.gate(report)
    why = gate.get("why")
    reasons = "; ".join(visible(line) for line in why) if isinstance(why, list) else ""
    return f"{visible(gate.get('decision'))}: {reasons}"


def _item(layer: Mapping[str, Any], say: Say) -> dict[str, Any]:
    return {
        "item": layer.get("layer"),
        "required": layer.get("outcome") != "not_applicable",
        "outcome": layer.get("outcome"),
        "evidence": best_evidence(layer, say),
    }


def best_evidence(layer: Mapping[str, Any], say: Say) -> str:
    """The first count of the layer's first finding, or its title."""
    for finding in model.findings(layer):
        for row in model.rows(finding.get("evidence")):
            counted = k_of_n(row, "value") if row.get("n") is not None else number(row.get("value"))
            ends = interval(row.get("ci95"))
            return f"{visible(row.get('metric'))}: {counted}{f' [{ends}]' if ends else ''}"
    from detdiag.report.text import layer_title

    return layer_title(layer, say, 160)


def checklist_parts(report: model.Report, say: Say) -> list[str]:
    """Profile, table, notes and decision as lines of Markdown."""
    from detdiag.report.markdown import md, md_table

    profile = model.gate(report).get("profile")
    lines = [f"{say('checklist.profile')}: {md(profile)}", ""] if profile else []
    lines += [md_table(checklist_table(report, say)), ""]
    lines += [f"- {md(note)}" for note in notes(report)]
    lines += [""] if notes(report) else []
    return [*lines, f"**{decision(report)}**: {md(decision_reasons(report, say))}", ""]


def render_checklist(report: model.Report, *, lang: str = "en") -> str:
    """The checklist as Markdown, ending in the decision."""
    from detdiag.report.markdown import command_block, md
    from detdiag.report.phrases import localised

    say, report = speaker(lang), localised(report, lang)
    lines = [f"# {say('checklist.title')}", "", *checklist_parts(report, say)]
    for step in steps(report):
        lines += [f"{say('verdict.next')}: {md(step.get('why'))}", ""]
        if step.get("command"):
            lines += [command_block(step["command"]), ""]
    return "\n".join(lines)
