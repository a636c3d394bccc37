"""Expert choice by block and by place."""

from __future__ import annotations

from typing import Any

from detdiag.report import model
from detdiag.report.messages import Say
from detdiag.report.safe import finite
from detdiag.report.tables.core import (
    Table,
    counted,
    field_cell,
    make_table,
    yes_no,
)
from detdiag.report.tables.numerics import RISKIEST


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
            ("head.block", field_cell("block"), True),
            ("head.tokens_rerouted", counted(), True),
            ("head.flip_rate", field_cell("rate"), True),
            ("head.smallest_margin", field_cell("smallest"), True),
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
            ("head.block", field_cell("block"), True),
            ("head.position", field_cell("position"), True),
            ("head.router_margin", field_cell("margin"), True),
            ("head.margin_ulp", field_cell("margin_ulp"), True),
            ("head.changed", yes_no(say, "changed"), False),
        ],
        limit=RISKIEST,
    )
