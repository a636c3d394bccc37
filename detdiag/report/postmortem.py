"""The postmortem style: what the record knows, and a visible TODO for everything it does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.report import model, tables
from detdiag.report.markdown import code_block, code_span, command_block, md, md_table
from detdiag.report.messages import Say, speaker
from detdiag.report.numbers import interval, k_of_n, seconds
from detdiag.report.phrases import localised
from detdiag.report.safe import visible

TODO = "**TODO**"


def render_postmortem(report: model.Report, *, lang: str = "en") -> str:
    """Markdown in the order of the usual postmortem form; nothing in it is invented."""
    say, report = speaker(lang), localised(report, lang)
    sections = [
        _title(report, say),
        _block(say("postmortem.summary"), _summary(report, say)),
        _block(say("postmortem.impact"), [f"{TODO}: {say('postmortem.todo_impact')}"]),
        _block(say("postmortem.root_cause"), _root_cause(report, say)),
        _block(say("postmortem.trigger"), _trigger(report, say)),
        _block(say("postmortem.detection"), _detection(report, say)),
        _block(say("postmortem.timeline"), _timeline(report, say)),
        _block(say("postmortem.actions"), [_actions(report, say)]),
        _block(
            say("postmortem.lessons"),
            [
                f"- {say('postmortem.went_well')}: {TODO}",
                f"- {say('postmortem.went_wrong')}: {TODO}",
                f"- {say('postmortem.lucky')}: {TODO}",
            ],
            gap="\n",
        ),
        _block(say("postmortem.evidence"), _evidence(report, say)),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _block(title: str, parts: list[str], gap: str = "\n\n") -> str:
    return f"## {title}\n\n" + gap.join(part for part in parts if part)


def _title(report: model.Report, say: Say) -> str:
    from detdiag.report.text import target_name

    method = model.mapping(report.get("method"))
    when = method.get("started") or method.get("time")
    target = md(target_name(report)) or say("postmortem.a_model")
    lines = [
        f"# {say('postmortem.heading', target=target)}",
        "",
        f"- {say('postmortem.date')}: {md(when) if when else TODO}",
        f"- {say('postmortem.authors')}: {TODO}",
        f"- {say('postmortem.status')}: {TODO}",
    ]
    return "\n".join(lines)


def _summary(report: model.Report, say: Say) -> list[str]:
    found = model.verdict(report)
    from detdiag.report.text import headline_text, in_language

    parts = [md(found.get("sentence"))]
    if not in_language(visible(found.get("sentence")), say):
        parts.insert(0, md(headline_text(report, say)))
    ruled_out = model.layer_ids(found.get("ruled_out"))
    if ruled_out:
        parts.append(f"{say('verdict.ruled_out')}: {', '.join(md(n) for n in ruled_out)}.")
    untested = model.layer_ids(found.get("untested"))
    if untested:
        parts.append(f"{say('verdict.untested')}: {', '.join(md(n) for n in untested)}.")
    return parts


def _root_cause(report: model.Report, say: Say) -> list[str]:
    found = model.verdict(report)
    if found.get("status") != "attributed":
        return [say("postmortem.no_root_cause"), *_next(report)]
    parts: list[str] = []
    for layer, finding in model.failed_findings(report):
        if (
            layer == found.get("layer")
            or model.rows(found.get("also"))
            and any(layer == also.get("layer") for also in model.rows(found.get("also")))
        ):
            parts.append(
                f"- {md(layer)}, {code_span(finding.get('rule'))}: {md(finding.get('summary'))}"
            )
    if not parts:
        parts.append(f"- {md(found.get('layer'))}, {code_span(found.get('rule'))}")
    place = model.first_divergence(report)
    if place:
        shown = ", ".join(f"{k} {code_span(v)}" for k, v in place.items())
        parts.append(f"- {say('verdict.first_divergence')}: {shown}")
    return ["\n".join(parts)]


def _next(report: model.Report) -> list[str]:
    out: list[str] = []
    for step in model.next_steps(report)[:1]:
        out.append(md(step.get("why")))
        if step.get("command"):
            out.append(command_block(step["command"]))
    return out


def _trigger(report: model.Report, say: Say) -> list[str]:
    """What changed against the baseline; a cause without a change has no known trigger."""
    table = tables.fingerprint_table(report, say)
    if table:
        return [say("postmortem.trigger_diff"), md_table(table)]
    method = model.mapping(report.get("method"))
    if method.get("baseline"):
        return [say("postmortem.trigger_same")]
    return [f"{TODO}: {say('postmortem.trigger_unknown')}"]


def _detection(report: model.Report, say: Say) -> list[str]:
    command = model.reproduce_command(report)
    count = report.get("observations")
    lines = [""]
    if isinstance(count, int):
        lines = [say("postmortem.detected", n=count) if count else say("postmortem.detected_files")]
    if command:
        lines.append(code_block(command))
    lines.append(f"{TODO}: {say('postmortem.todo_detection')}")
    return lines


def timeline_rows(report: model.Report) -> list[tuple[str, str]]:
    """``(time, event)`` from ``method.timeline``, else the probes in the order they ran."""
    method = model.mapping(report.get("method"))
    given = model.rows(method.get("timeline"))
    if given:
        return [(visible(r.get("time")), visible(r.get("event"))) for r in given]
    out: list[tuple[str, str]] = []
    for probe in model.rows(method.get("probes")):
        reason = f" ({visible(probe['reason'])})" if probe.get("reason") else ""
        event = f"{visible(probe.get('layer'))}: {visible(probe.get('state'))}{reason}"
        out.append((seconds(probe.get("wall_s")), event))
    return out


def _timeline(report: model.Report, say: Say) -> list[str]:
    found = timeline_rows(report)
    lines = [f"- {md(time)}: {md(event)}" for time, event in found]
    return ["\n".join([*lines, f"- {TODO}: {say('postmortem.todo_timeline')}"])]


def _actions(report: model.Report, say: Say) -> str:
    heads = ("postmortem.action", "postmortem.type", "postmortem.owner", "postmortem.bug")
    blank = ("TODO", "TODO")
    found = model.short_remedies(report)
    rows: list[tuple[str, ...]] = [(r.action, say(f"remedy.{r.kind}"), *blank) for r in found]
    if model.verdict(report).get("status") == "attributed":
        named = visible(model.verdict(report).get("layer"))
        rows.append((say("postmortem.prevent", layer=named), say("remedy.prevent"), *blank))
        verify = next((r.verify for r in found if r.verify), None)
        if verify:
            detect = say("postmortem.detect", command=visible(verify))
            rows.append((detect, say("remedy.detect"), *blank))
    steps = model.next_steps(report)[:1]
    rows += [(str(step.get("why") or ""), say("remedy.detect"), *blank) for step in steps]
    if not rows:
        rows.append(("TODO", "TODO", "TODO", "TODO"))
    table = tables.Table(
        "", tuple(say(h) for h in heads), tuple(tuple(visible(c) for c in r) for r in rows)
    )
    return md_table(table)


def _evidence_line(layer: str, finding: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for row in model.rows(finding.get("evidence")):
        counted = k_of_n(row, "value") if row.get("n") is not None else visible(row.get("value"))
        ends = interval(row.get("ci95"))
        conditions = tables.condition_text(row.get("conditions") or [])
        text = f"- {md(layer)}: {md(row.get('metric'))} {md(counted)}{f' [{ends}]' if ends else ''}"
        lines.append(f"{text} ({md(conditions)})" if conditions not in ("", "–") else text)
    if not lines and finding.get("outcome") == "failed" and finding.get("where"):
        lines = [f"- {md(layer)}: {code_span(finding['where'])} {md(finding.get('summary'))}"]
    return lines


def _evidence(report: model.Report, say: Say) -> list[str]:
    lines = [
        line
        for layer in model.layers_by_clump(report)
        for f in model.findings(layer)
        if f.get("outcome") in ("failed", "passed")
        for line in _evidence_line(str(layer.get("layer")), f)
    ]
    parts = ["\n".join(lines), md_table(tables.ladder_table(report, say))]
    digest = model.record_sha256(report)
    if digest:
        parts.append(f"{say('reproduce.record')}: {code_span(digest)}")
    if model.redaction(report) != "none":
        parts.append(say("redact." + model.redaction(report)))
    return parts
