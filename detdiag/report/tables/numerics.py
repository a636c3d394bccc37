"""Numbers of a local model: margins, batch sweep, modules, operators, switches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from detdiag.report import model
from detdiag.report.messages import Say
from detdiag.report.numbers import seconds
from detdiag.report.safe import finite
from detdiag.report.tables.core import (
    Table,
    counted,
    field_cell,
    make_table,
    yes_no,
)

RISKIEST: Final = 20


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
            ("head.query", field_cell("query", 40), False),
            ("head.position", field_cell("position"), True),
            ("head.token", field_cell("token", 40), False),
            ("head.margin_logits", field_cell("margin_logits"), True),
            ("head.margin_ulp", field_cell("margin_ulp"), True),
            ("head.noise_logits", field_cell("noise_logits"), True),
            ("head.at_risk", yes_no(say, "at_risk"), False),
            ("head.flipped", yes_no(say, "flipped"), False),
        ],
    )
    return table


def sweep_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("sweep.caption"),
        model.rows(model.data(report).get("sweep")),
        [
            ("head.query", field_cell("query", 40), False),
            ("head.batch_size", field_cell("batch_size"), True),
            ("head.padding_side", field_cell("padding_side"), False),
            ("head.neighbours", field_cell("neighbours", 40), False),
            ("head.bit_equal", yes_no(say, "bit_equal"), False),
            ("head.max_abs_logit", field_cell("max_abs_logit"), True),
            ("head.max_ulp", field_cell("max_ulp"), True),
            ("head.flips", counted("flips"), True),
        ],
    )


def heatmap_table(report: model.Report, say: Say) -> Table:
    """One row a module: where it first differs and by how much."""
    heat = model.mapping(model.data(report).get("heatmap"))
    grid = heat.get("log10_rel") or []
    first = model.mapping(heat.get("first"))
    source: list[dict[str, Any]] = []
    modules = list(heat.get("modules") or [])
    start = model.listed_module(first.get("module"), modules)
    for row, (module, line) in enumerate(zip(modules, grid, strict=False)):
        known = [finite(v) for v in (line or [])]
        hit = [i for i, v in enumerate(known) if v is not None]
        source.append(
            {
                "module": module,
                "mark": say("heatmap.first_mark") if row == start else None,
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
            ("head.module", field_cell("module"), False),
            ("head.first_token", field_cell("first"), True),
            ("head.tokens_differ", counted(), True),
            ("head.largest_log10", field_cell("largest"), True),
            ("head.mark", field_cell("mark"), False),
        ],
    )


def toggles_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("toggles.caption"),
        model.rows(model.data(report).get("toggles")),
        [
            ("head.toggle", field_cell("toggle"), False),
            ("head.value", field_cell("value"), False),
            ("head.bit_equal", yes_no(say, "bit_equal"), False),
            ("head.max_abs_logit", field_cell("max_abs_logit"), True),
            ("head.flips", counted("flips"), True),
            ("head.control", counted("control_k", "control_n"), True),
            ("head.seconds", lambda r: seconds(r.get("seconds")), True),
            ("head.speed_ratio", field_cell("speed_ratio"), True),
        ],
    )


def operators_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("operators.caption"),
        model.rows(model.data(report).get("operators")),
        [
            ("head.op", field_cell("op"), False),
            ("head.module", field_cell("module"), False),
            ("head.block", field_cell("block"), True),
            ("head.label", field_cell("label"), False),
            ("head.count", field_cell("count"), True),
            ("head.max_ulp", field_cell("max_ulp"), True),
            ("head.replay_differs", yes_no(say, "replay_differs"), False),
        ],
    )
