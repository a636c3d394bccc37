"""Counts: ladder, contrasts, controls and the evidence of one finding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.report import model
from detdiag.report.messages import Say
from detdiag.report.numbers import k_of_n, number
from detdiag.report.safe import visible
from detdiag.report.tables.core import (
    Table,
    ci_cell,
    condition_text,
    counted,
    field_cell,
    make_table,
    phrase,
)


def ladder_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("ladder.title"),
        model.rows(model.data(report).get("ladder")),
        [
            ("head.step", lambda r: phrase(r.get("step"), say), False),
            ("head.layer", field_cell("layer"), False),
            (
                "head.left",
                lambda r: k_of_n(r) if r.get("tested", True) else say("ladder.untested"),
                True,
            ),
            ("head.ci95", ci_cell, True),
            ("head.note", lambda r: phrase(r.get("note"), say), False),
        ],
    )


def contrasts_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("contrasts.caption"),
        model.rows(model.data(report).get("contrasts")),
        [
            ("head.factor", field_cell("factor"), False),
            ("head.layer", field_cell("layer"), False),
            ("head.differ", counted(), True),
            ("head.ci95", ci_cell, True),
            ("head.arms", lambda r: condition_text(r.get("arms")), False),
            ("head.control", counted("control_k", "control_n"), True),
            ("head.divergence", field_cell("divergence"), False),
        ],
    )


def controls_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("controls.caption"),
        model.rows(model.data(report).get("controls")),
        [
            ("head.condition", lambda r: condition_text(r.get("condition")), False),
            ("head.differ", counted(), True),
            ("head.ci95", ci_cell, True),
        ],
    )


def evidence_table(finding: Mapping[str, Any], say: Say) -> Table:
    """The evidence rows of one finding."""
    return make_table(
        say,
        say("evidence.caption", rule=visible(finding.get("rule"))),
        model.rows(finding.get("evidence")),
        [
            ("head.metric", field_cell("metric"), False),
            (
                "head.value",
                lambda r: k_of_n(r, "value") if r.get("n") is not None else number(r.get("value")),
                True,
            ),
            ("head.unit", field_cell("unit"), False),
            ("head.ci95", ci_cell, True),
            ("head.conditions", lambda r: condition_text(r.get("conditions") or []), False),
        ],
    )
