"""What each section of the page shows: plain values for the template, no markup."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from detdiag.report import figures, model, tables
from detdiag.report.checklist import (
    checklist_table,
    decision,
    decision_reasons,
    outcome_word,
)
from detdiag.report.messages import Say, has
from detdiag.report.numbers import interval, interval_ends, k_of_n, number, seconds, share
from detdiag.report.safe import dump_json, finite, one_line, visible
from detdiag.report.text import confidence_word, headline_text, layer_title, target_name

_VERDICT_SYMBOLS: Final = {"attributed": "✗", "clean": "✓"}
MAX_OUTPUT_CHARS: Final = 4000
MAX_TOKEN_IDS: Final = 64


def facts(report: model.Report, say: Say) -> list[tuple[str, str]]:
    """The header strip: name and value of what was measured, where and how."""
    target = model.mapping(report.get("target"))
    method = model.mapping(report.get("method"))
    tool = model.mapping(report.get("tool"))
    digest = model.fingerprint_digest(report)
    when = method.get("started") or method.get("time") or target.get("time")
    count = report.get("observations")
    found = [
        ("header.target", target_name(report)),
        ("header.date", one_line(when, 40)),
        ("header.device", one_line(target.get("device"), 60)),
        ("header.dtype", one_line(target.get("dtype"), 20)),
        ("header.fingerprint", one_line(digest)[:12] if digest else ""),
        ("header.observations", number(count) if count is not None else ""),
        ("header.redact", say(f"redact_word.{model.redaction(report)}")
         if has(f"redact_word.{model.redaction(report)}") else model.redaction(report)),
        ("header.tool", f"{visible(tool.get('version'))} · {visible(report.get('schema'))}"),
    ]  # fmt: skip
    return [(say(key), value) for key, value in found if value]


def verdict_view(report: model.Report, say: Say) -> dict[str, Any]:
    found = model.verdict(report)
    status = str(found.get("status") or "inconclusive")
    status = status if status in ("attributed", "clean") else "inconclusive"
    sentence = visible(found.get("sentence"))
    english = say("lang.id") == "en"
    tags: list[str] = []
    if status == "attributed":
        tags.append(f"{say('head.layer')}: {visible(found.get('layer'))}")
    if found.get("confidence"):
        tags.append(confidence_word(found["confidence"], say))
    if has(f"divergence.{found.get('divergence')}"):
        tags.append(say(f"divergence.{found['divergence']}"))
    return {
        "status": status,
        "symbol": _VERDICT_SYMBOLS.get(status, "?"),
        "word": say(f"status.{status}"),
        "tags": tags,
        "headline": sentence if english and sentence else headline_text(report, say),
        "sentence": "" if english else sentence,
        "rows": _verdict_rows(report, say),
        "remedy": model.primary_remedy(report) if status == "attributed" else None,
        "next": model.rows(found.get("next"))[:3] if status != "clean" else [],
        "would_change": found.get("would_change"),
    }


def _verdict_rows(report: model.Report, say: Say) -> list[tuple[str, str]]:
    found = model.verdict(report)
    out: list[tuple[str, str]] = []
    if found.get("confidence") in ("confirmed", "likely", "suspected"):
        out.append((say("verdict.confidence"), say(f"confidence_means.{found['confidence']}")))
    place = model.first_divergence(report)
    if place:
        named = [f"{say('place.' + k)} {one_line(v, 120)}" for k, v in place.items()]
        out.append((say("verdict.first_divergence"), ", ".join(named)))
    also = [also_text(row, say) for row in model.rows(found.get("also"))]
    if also:
        out.append((say("verdict.also"), "; ".join(also)))
    elif found.get("status") == "attributed":
        out.append((say("verdict.also"), say("verdict.also_none")))
    if found.get("confounded"):
        out.append((say("verdict.confounded"), confounded_text(found["confounded"])))
    for key in ("ruled_out", "untested"):
        names = model.layer_ids(found.get(key))
        if names:
            out.append((say(f"verdict.{key}"), ", ".join(visible(n) for n in names)))
    return out


def also_text(row: Mapping[str, Any], say: Say) -> str:
    rule = f" ({visible(row.get('rule'))})" if row.get("rule") else ""
    return f"{visible(row.get('layer'))}{rule}, {confidence_word(row.get('confidence'), say)}"


def confounded_text(value: Any) -> str:
    """Confounded factors: names, or sets of names, or ``{"factors": [...]}`` objects."""
    if isinstance(value, Mapping):
        inner = value.get("factors")
        return confounded_text(inner) if inner else tables.condition_text(value)
    if isinstance(value, (list, tuple)):
        nested = any(isinstance(v, (list, tuple, Mapping)) for v in value)
        return ("; " if nested else " + ").join(confounded_text(v) for v in value)
    return visible(value)


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
                "step": one_line(row.get("step"), 80),
                "layer": visible(row.get("layer")),
                "tested": tested,
                "width": _percent(left) if tested and left else None,
                "ci": (_percent(ends[0]), _percent(ends[1] - ends[0])) if tested and ends else None,
                "count": k_of_n(row) if tested else say("ladder.untested"),
                "interval": interval(row.get("ci95")) if tested else "",
                "stops": stops,
                "note": one_line(row.get("note"), 200),
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
                "empty": say(f"layer_title.{state}"),
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


@dataclass(frozen=True, slots=True)
class FigureView:
    """One figure section: a question, the finding in words, the figure's spec and its tables."""

    id: str
    title: str
    finding: str
    empty: str
    spec: Mapping[str, Any] | None
    tables: tuple[tables.Table, ...]
    wide: bool = False
    note: str = ""
    drawn: bool = field(default=False)

    @property
    def shown(self) -> bool:
        return self.drawn or any(self.tables)


Draw = Callable[[model.Report, Say], Any]


def figure_views(report: model.Report, say: Say, draw: bool) -> list[FigureView]:
    """The figures of the page in reading order; without ``draw`` only their tables."""
    routing_state = next(
        (
            model.layer_state(r)
            for r in model.layers_in_walk_order(report)
            if r.get("layer") == "moe"
        ),
        "",
    )
    no_router = say(
        "routing.not_applicable" if routing_state == "not_applicable" else "routing.empty"
    )
    start, stop = figures.heatmap_window(report)
    made: list[tuple[str, Draw | None, list[tables.Table], str, str, bool]] = [
        ("margins", figures.margins_scatter, [tables.margins_table(report, say)],
         margins_finding(report, say), say("margins.empty"), False),
        ("heatmap", figures.divergence_heatmap, [tables.heatmap_table(report, say)],
         heatmap_finding(report, say), say("heatmap.empty"), True),
        ("operators", None, [tables.operators_table(report, say), tables.toggles_table(report, say)],
         operators_finding(report, say), say("operators.empty"), False),
        ("sweep", figures.batch_sweep, [tables.sweep_table(report, say)],
         sweep_finding(report, say), say("sweep.empty"), False),
        ("routing", figures.expert_flips, [tables.routing_table(report, say)],
         routing_finding(report, say), no_router, True),
        ("router_margins", figures.routing_margins, [tables.router_margins_table(report, say)],
         router_margins_finding(report, say), no_router, False),
    ]  # fmt: skip
    out: list[FigureView] = []
    for id_, function, found, finding, empty, wide in made:
        figure = function(report, say) if draw and function else None
        width = max(
            (
                len(r)
                for r in (model.mapping(model.data(report).get("heatmap")).get("log10_rel") or [])
            ),
            default=0,
        )
        cut = id_ == "heatmap" and stop - start < width
        if id_ == "router_margins" and not any(found):
            continue
        out.append(
            FigureView(
                id=id_.replace("_", "-"),
                title=say(f"{id_}.title"),
                finding=finding,
                empty=empty,
                spec=None if figure is None else _spec(f"{id_.replace('_', '-')}-plot", figure),
                tables=tuple(t for t in found if t),
                wide=wide,
                note=say("heatmap.window", start=start, stop=stop, all=width)
                if cut and draw
                else "",
                drawn=figure is not None,
            )
        )
    return out


def _spec(div_id: str, figure: Any) -> dict[str, Any]:
    made = figure.to_plotly_json()
    return {"id": div_id, "data": made["data"], "layout": made["layout"]}


def margins_finding(report: model.Report, say: Say) -> str:
    found = model.rows(report.get("margins"))
    measured = [
        (finite(r.get("margin_logits")), finite(r.get("noise_logits")), bool(r.get("flipped")))
        for r in found
    ]
    known = [(m, n, f) for m, n, f in measured if m is not None and n is not None]
    risky = sum(1 for m, n, _ in known if m <= n)
    flipped = sum(1 for _, _, f in known if f)
    above = sum(1 for m, n, f in known if f and m > n)
    text = say("margins.found", all=len(known), risky=risky, flipped=flipped)
    if flipped:
        text += " " + (say("margins.above", n=above) if above else say("margins.none_above"))
    if len(known) < len(found):
        text += " " + say("margins.unmeasured", n=len(found) - len(known))
    return text


def heatmap_finding(report: model.Report, say: Say) -> str:
    heat = model.mapping(model.data(report).get("heatmap"))
    first = model.mapping(heat.get("first"))
    if not first.get("module"):
        return say("heatmap.none")
    op = f" ({one_line(first['op'], 60)})" if first.get("op") else ""
    return say(
        "heatmap.found",
        module=one_line(first["module"], 120),
        token=number(first.get("token")),
        op=op,
    )


def sweep_finding(report: model.Report, say: Say) -> str:
    found = model.rows(model.data(report).get("sweep"))
    batched = [r for r in found if (finite(r.get("batch_size")) or 1) > 1]
    differ = sorted(
        {int(finite(r["batch_size"]) or 0) for r in batched if r.get("bit_equal") is False}
    )
    if not batched:
        return say("sweep.solo_only")
    if not differ:
        return say("sweep.equal", n=len(batched))
    largest = max((finite(r.get("max_abs_logit")) or 0.0 for r in batched), default=0.0)
    flips = sum(int(finite(r.get("flips")) or 0) for r in batched)
    return say(
        "sweep.found", sizes=", ".join(str(s) for s in differ), largest=number(largest), flips=flips
    )


def operators_finding(report: model.Report, say: Say) -> str:
    data = model.data(report)
    proof = model.mapping(data.get("proof"))
    statement = proof.get("statement")
    if isinstance(statement, (list, tuple)) and statement:
        return " ".join(visible(line) for line in statement)
    born = [r for r in model.rows(data.get("operators")) if r.get("label") == "born"]
    if born:
        names = ", ".join(dict.fromkeys(one_line(r.get("op"), 60) for r in born[:5]))
        return say("operators.born", names=names)
    stops = [r for r in model.rows(data.get("toggles")) if r.get("bit_equal")]
    if stops:
        return say("operators.toggle", names=", ".join(
            f"{one_line(r.get('toggle'), 60)}={one_line(r.get('value'), 30)}" for r in stops[:4]))  # fmt: skip
    return say("operators.none")


def routing_finding(report: model.Report, say: Say) -> str:
    routing = model.mapping(model.data(report).get("routing"))
    grid = [line for line in routing.get("changed") or [] if isinstance(line, (list, tuple))]
    cells = sum(len(line) for line in grid)
    changed = sum(1 for line in grid for v in line if v)
    return say("routing.found" if changed else "routing.none", k=changed, n=cells, blocks=len(grid))


def router_margins_finding(report: model.Report, say: Say) -> str:
    found = model.rows(model.mapping(model.data(report).get("routing")).get("margins"))
    ties = sum(1 for r in found if finite(r.get("margin")) == 0)
    changed = [r for r in found if r.get("changed")]
    largest = max((finite(r.get("margin")) or 0.0 for r in changed), default=None)
    return say(
        "router_margins.found",
        n=len(found), ties=ties, changed=len(changed), largest=number(largest),
    )  # fmt: skip


def output_views(report: model.Report, say: Say) -> list[dict[str, Any]]:
    """Each pair of outputs with the common start, the first difference and the rest apart."""
    out: list[dict[str, Any]] = []
    for pair in model.rows(model.data(report).get("outputs"))[:6]:
        a, b = model.mapping(pair.get("a")), model.mapping(pair.get("b"))
        texts = (str(a.get("text") or ""), str(b.get("text") or ""))
        same = common_start(*texts)
        first = pair.get("first_diff_token")
        title = one_line(pair.get("query"), 80)
        if first is not None:
            title += f": {say('outputs.first_diff', token=number(first))}"
        out.append(
            {
                "title": title,
                "sides": [
                    {
                        "condition": tables.condition_text(side.get("condition")),
                        "parts": split_at(text, same),
                        "token_ids": _ids(side.get("token_ids"), first),
                        "tag": tag,
                    }
                    for side, text, tag in ((a, texts[0], "del"), (b, texts[1], "ins"))
                ],
            }
        )
    return out


def common_start(a: str, b: str) -> int:
    """Length of the common start of two texts, in characters, cut back to a word start."""
    same = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        same += 1
    if same == len(a) == len(b):
        return same
    while same and a[same - 1].isalnum() and a[same - 1].isascii():
        same -= 1
    return same


def split_at(text: str, same: int) -> tuple[str, str, str]:
    """``(common start, the first differing word, the rest)``; a long start keeps its end."""
    head, tail = text[:same], text[same:]
    end = 0
    while end < len(tail) and not (end and (tail[end].isspace() or end >= 40)):
        end += 1
    if len(head) > 600:
        head = f"[… {len(head) - 400}] {head[-400:]}"
    rest = tail[end:]
    if len(rest) > MAX_OUTPUT_CHARS:
        rest = f"{rest[:MAX_OUTPUT_CHARS]} [… {len(rest) - MAX_OUTPUT_CHARS}]"
    return head, tail[:end], rest


def _ids(value: Any, first: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return ""
    place = int(finite(first) or 0)
    start = max(0, place - MAX_TOKEN_IDS // 2) if len(value) > MAX_TOKEN_IDS else 0
    shown = value[start : start + MAX_TOKEN_IDS]
    ids = [
        f"[{number(v)}]" if first is not None and start + i == place else number(v)
        for i, v in enumerate(shown)
    ]
    return (
        ("… " if start else "") + " ".join(ids) + (" …" if start + len(shown) < len(value) else "")
    )


def diff_notes(report: model.Report, say: Say) -> list[str]:
    diff = model.mapping(model.data(report).get("input_diff"))
    notes = diff.get("notes")
    lines = [visible(n) for n in notes] if isinstance(notes, (list, tuple)) else []
    if diff.get("left") or diff.get("right"):
        lines.insert(0, f"{one_line(diff.get('left'), 200)} ↔ {one_line(diff.get('right'), 200)}")
    return lines


def fingerprint_all(report: model.Report, say: Say) -> tables.Table | None:
    """Every field of the fingerprint, folded away; nested objects by dotted names."""
    flat = list(_flatten(model.mapping(report.get("fingerprint"))))[:400]
    if not flat:
        return None
    return tables.Table(
        say("diffs.fingerprint"), (say("head.field"), say("head.value")),
        tuple((one_line(k, 120), one_line(v, 200)) for k, v in flat),
    )  # fmt: skip


def _flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    out: list[tuple[str, str]] = []
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, Mapping):
            out += _flatten(item, f"{name}.")
        elif isinstance(item, (list, tuple)):
            out.append((name, dump_json(item, indent=None)))
        else:
            out.append((name, number(item)))
    return out


def checklist_view(report: model.Report, say: Say) -> dict[str, Any]:
    return {
        "decision": decision(report),
        "why": decision_reasons(report),
        "table": checklist_table(report, say),
    }


def method_view(report: model.Report, say: Say) -> tuple[list[tuple[str, str]], list[str]]:
    """``(name, value)`` of how it was measured, and the limits as sentences."""
    method = model.mapping(report.get("method"))
    target = model.mapping(report.get("target"))
    out = [
        (say("method.conditions"), tables.condition_text(method.get("conditions"))
         if method.get("conditions") else ""),
        (say("method.budget"), seconds(method.get("budget_s")) if method.get("budget_s") else ""),
        (say("method.skipped"), _skipped(method.get("skipped"))),
        (say("method.target"), tables.condition_text(
            {k: v for k, v in target.items() if not isinstance(v, (dict, list, tuple))})
         if target else ""),
    ]  # fmt: skip
    for probe in model.rows(method.get("probes")):
        if probe.get("state") != "done":
            reason = f": {visible(probe['reason'])}" if probe.get("reason") else ""
            out.append(
                (
                    f"{say('method.probe')} {visible(probe.get('layer'))}",
                    f"{visible(probe.get('state'))}{reason}",
                )
            )
    limits = method.get("limits")
    lines = [visible(line) for line in limits] if isinstance(limits, (list, tuple)) else []
    return [(k, v) for k, v in out if v and v != "–"], [*lines, say("method.absence")]


def _skipped(value: Any) -> str:
    if not isinstance(value, (list, tuple)):
        return visible(value)
    return "; ".join(tables.condition_text(v) for v in value)


def glossary(say: Say) -> list[tuple[str, str]]:
    words = ("layer", "factor", "contrast", "control", "margin", "noise_floor", "ulp", "interval",
             "confirmed", "likely", "suspected", "untested")  # fmt: skip
    return [(say(f"glossary.{w}.word"), say(f"glossary.{w}.text")) for w in words]
