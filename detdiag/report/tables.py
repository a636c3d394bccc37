"""The numbers behind every figure as plain tables, shared by HTML and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detdiag.report import model
from detdiag.report.messages import Say
from detdiag.report.numbers import interval, k_of_n, number, seconds
from detdiag.report.safe import finite, one_line, visible

RISKIEST: Final = 20
LONGEST: Final = 200
"""Rows of a table before it is cut (the caption says so)."""


@dataclass(frozen=True, slots=True)
class Table:
    """``rows`` of display strings under ``heads``; ``numeric`` marks right-aligned columns."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.rows)


def make_table(
    say: Say,
    caption: str,
    source: Sequence[Mapping[str, Any]],
    columns: Sequence[tuple[str, Callable[[Mapping[str, Any]], str], bool]],
    limit: int = LONGEST,
) -> Table:
    """A table with the columns ``(message key of the head, cell function, numeric)``.

    Columns without a single value are left out; rows beyond ``limit`` are cut and counted.
    """
    shown = source[:limit]
    cells = [[fn(row) for _, fn, _ in columns] for row in shown]
    kept = [i for i in range(len(columns)) if any(row[i] not in ("", "–") for row in cells)]
    if len(source) > limit:
        caption = f"{caption} ({say('table.cut', shown=limit, all=len(source))})"
    return Table(
        caption,
        tuple(say(columns[i][0]) for i in kept),
        tuple(tuple(row[i] for i in kept) for row in cells),
        frozenset(place for place, i in enumerate(kept) if columns[i][2]),
    )


def _field(key: str, limit: int | None = 160) -> Callable[[Mapping[str, Any]], str]:
    def cell(row: Mapping[str, Any]) -> str:
        value = row.get(key)
        if value is None:
            return "–"
        if isinstance(value, (dict, list, tuple)):
            from detdiag.report.safe import dump_json

            return one_line(dump_json(value, indent=None), limit)
        return number(value) if isinstance(value, float) else one_line(value, limit)

    return cell


def _counted(k: str = "k", n: str = "n") -> Callable[[Mapping[str, Any]], str]:
    return lambda row: k_of_n(row, k, n)


def _ci(row: Mapping[str, Any]) -> str:
    return interval(row.get("ci95"))


def _yes_no(say: Say, key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "–" if row.get(key) is None else say("yes" if row[key] else "no")


def condition_text(value: Any) -> str:
    """A condition dict as ``key=value, key=value``; any other value as text."""
    if isinstance(value, Mapping):
        return ", ".join(f"{visible(k)}={one_line(v, 60)}" for k, v in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return " / ".join(condition_text(v) for v in value)
    return one_line(value, 200)


def ladder_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("ladder.title"),
        model.rows(model.data(report).get("ladder")),
        [
            ("head.step", _field("step"), False),
            ("head.layer", _field("layer"), False),
            (
                "head.left",
                lambda r: k_of_n(r) if r.get("tested", True) else say("ladder.untested"),
                True,
            ),
            ("head.ci95", _ci, True),
            ("head.note", _field("note"), False),
        ],
    )


def contrasts_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("contrasts.caption"),
        model.rows(model.data(report).get("contrasts")),
        [
            ("head.factor", _field("factor"), False),
            ("head.layer", _field("layer"), False),
            ("head.differ", _counted(), True),
            ("head.ci95", _ci, True),
            ("head.arms", lambda r: condition_text(r.get("arms")), False),
            ("head.control", _counted("control_k", "control_n"), True),
            ("head.divergence", _field("divergence"), False),
        ],
    )


def controls_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("controls.caption"),
        model.rows(model.data(report).get("controls")),
        [
            ("head.condition", lambda r: condition_text(r.get("condition")), False),
            ("head.differ", _counted(), True),
            ("head.ci95", _ci, True),
        ],
    )


def riskiest_margins(report: model.Report) -> list[Mapping[str, Any]]:
    """Margins by how far they lie below their noise floor: flipped and at-risk ones first."""

    def key(row: Mapping[str, Any]) -> tuple[bool, float, str, int]:
        margin, noise = finite(row.get("margin_logits")), finite(row.get("noise_logits"))
        ratio = float("inf") if margin is None else margin / noise if noise else margin * 1e6
        return (
            not row.get("flipped"),
            ratio,
            str(row.get("query")),
            int(finite(row.get("position")) or 0),
        )

    return sorted(model.rows(report.get("margins")), key=key)


def margins_table(report: model.Report, say: Say) -> Table:
    source = riskiest_margins(report)
    table = make_table(
        say,
        say("margins.caption", shown=min(RISKIEST, len(source)), all=len(source)),
        source[:RISKIEST],
        [
            ("head.query", _field("query", 40), False),
            ("head.position", _field("position"), True),
            ("head.token", _field("token", 40), False),
            ("head.margin_logits", _field("margin_logits"), True),
            ("head.margin_ulp", _field("margin_ulp"), True),
            ("head.noise_logits", _field("noise_logits"), True),
            ("head.at_risk", _yes_no(say, "at_risk"), False),
            ("head.flipped", _yes_no(say, "flipped"), False),
        ],
    )
    return table


def sweep_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("sweep.caption"),
        model.rows(model.data(report).get("sweep")),
        [
            ("head.query", _field("query", 40), False),
            ("head.batch_size", _field("batch_size"), True),
            ("head.padding_side", _field("padding_side"), False),
            ("head.neighbours", _field("neighbours", 40), False),
            ("head.bit_equal", _yes_no(say, "bit_equal"), False),
            ("head.max_abs_logit", _field("max_abs_logit"), True),
            ("head.max_ulp", _field("max_ulp"), True),
            ("head.flips", _counted("flips"), True),
        ],
    )


def heatmap_table(report: model.Report, say: Say) -> Table:
    """One row a module: where it first differs and by how much."""
    heat = model.mapping(model.data(report).get("heatmap"))
    grid = heat.get("log10_rel") or []
    first = model.mapping(heat.get("first"))
    source: list[dict[str, Any]] = []
    for module, line in zip(heat.get("modules") or [], grid, strict=False):
        known = [finite(v) for v in (line or [])]
        hit = [i for i, v in enumerate(known) if v is not None]
        source.append(
            {
                "module": module,
                "mark": say("heatmap.first_mark") if module == first.get("module") else None,
                "first": hit[0] if hit else None,
                "k": len(hit),
                "n": len(known),
                "largest": max((v for v in known if v is not None), default=None),
            }
        )
    return make_table(
        say,
        say("heatmap.caption"),
        source,
        [
            ("head.module", _field("module"), False),
            ("head.first_token", _field("first"), True),
            ("head.tokens_differ", _counted(), True),
            ("head.largest_log10", _field("largest"), True),
            ("head.mark", _field("mark"), False),
        ],
    )


def routing_table(report: model.Report, say: Say) -> Table:
    """One row a mixture-of-experts block."""
    routing = model.mapping(model.data(report).get("routing"))
    margins = model.rows(routing.get("margins"))
    source: list[dict[str, Any]] = []
    rates = routing.get("flip_rate") or []
    for i, block in enumerate(routing.get("blocks") or []):
        own = [m for m in margins if m.get("block") == block]
        smallest = [v for v in (finite(m.get("margin")) for m in own) if v is not None]
        changed = routing.get("changed") or []
        line = changed[i] if i < len(changed) and isinstance(changed[i], (list, tuple)) else []
        source.append(
            {
                "block": block,
                "k": sum(1 for v in line if v) if line else None,
                "n": len(line) if line else None,
                "rate": rates[i] if i < len(rates) else None,
                "smallest": min(smallest, default=None),
            }
        )
    return make_table(
        say,
        say("routing.caption"),
        source,
        [
            ("head.block", _field("block"), True),
            ("head.tokens_rerouted", _counted(), True),
            ("head.flip_rate", _field("rate"), True),
            ("head.smallest_margin", _field("smallest"), True),
        ],
    )


def router_margins_table(report: model.Report, say: Say) -> Table:
    routing = model.mapping(model.data(report).get("routing"))
    source = sorted(
        model.rows(routing.get("margins")),
        key=lambda r: (not r.get("changed"), finite(r.get("margin")) or 0.0),
    )
    return make_table(
        say,
        say("router_margins.caption"),
        source,
        [
            ("head.block", _field("block"), True),
            ("head.position", _field("position"), True),
            ("head.router_margin", _field("margin"), True),
            ("head.margin_ulp", _field("margin_ulp"), True),
            ("head.changed", _yes_no(say, "changed"), False),
        ],
        limit=RISKIEST,
    )


def toggles_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("toggles.caption"),
        model.rows(model.data(report).get("toggles")),
        [
            ("head.toggle", _field("toggle"), False),
            ("head.value", _field("value"), False),
            ("head.bit_equal", _yes_no(say, "bit_equal"), False),
            ("head.max_abs_logit", _field("max_abs_logit"), True),
            ("head.flips", _counted("flips"), True),
            ("head.control", _counted("control_k", "control_n"), True),
            ("head.seconds", lambda r: seconds(r.get("seconds")), True),
            ("head.speed_ratio", _field("speed_ratio"), True),
        ],
    )


def operators_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("operators.caption"),
        model.rows(model.data(report).get("operators")),
        [
            ("head.op", _field("op"), False),
            ("head.module", _field("module"), False),
            ("head.block", _field("block"), True),
            ("head.label", _field("label"), False),
            ("head.count", _field("count"), True),
            ("head.max_ulp", _field("max_ulp"), True),
            ("head.replay_differs", _yes_no(say, "replay_differs"), False),
        ],
    )


def params_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("params.caption"),
        model.rows(model.data(report).get("effective_params")),
        [
            ("head.surface", _field("surface"), False),
            ("head.parameter", _field("parameter"), False),
            ("head.value", _field("value"), False),
            ("head.origin", _field("origin"), False),
            ("head.ignored", lambda r: condition_text(r.get("ignored") or []), False),
        ],
    )


def fingerprint_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("fingerprint_diff.caption"),
        model.rows(model.data(report).get("fingerprint_diff")),
        [
            ("head.field", _field("field"), False),
            ("head.a", _field("a"), False),
            ("head.b", _field("b"), False),
            ("head.severity", _field("severity"), False),
            ("head.acts_on", _field("acts_on"), False),
        ],
    )


def input_table(report: model.Report, say: Say) -> Table:
    diff = model.mapping(model.data(report).get("input_diff"))
    return make_table(
        say,
        say("input_diff.caption"),
        model.rows(diff.get("hunks")),
        [
            ("head.offset_a", _field("offset_a"), True),
            ("head.offset_b", _field("offset_b"), True),
            ("head.a", _field("a", 400), False),
            ("head.b", _field("b", 400), False),
            ("head.names", lambda r: condition_text(r.get("names") or []), False),
        ],
    )


def evidence_table(finding: Mapping[str, Any], say: Say) -> Table:
    """The evidence rows of one finding."""
    return make_table(
        say,
        say("evidence.caption", rule=visible(finding.get("rule"))),
        model.rows(finding.get("evidence")),
        [
            ("head.metric", _field("metric"), False),
            (
                "head.value",
                lambda r: k_of_n(r, "value") if r.get("n") is not None else number(r.get("value")),
                True,
            ),
            ("head.unit", _field("unit"), False),
            ("head.ci95", _ci, True),
            ("head.conditions", lambda r: condition_text(r.get("conditions") or []), False),
        ],
    )
