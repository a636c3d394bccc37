"""What went in: effective parameters, input bytes, fingerprints."""

from __future__ import annotations

import unicodedata
from typing import Any

from detdiag.report import model
from detdiag.report.messages import Say
from detdiag.report.safe import escape_of, one_line
from detdiag.report.tables.core import (
    Table,
    condition_text,
    field_cell,
    make_table,
)


def params_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("params.caption"),
        model.rows(model.data(report).get("effective_params")),
        [
            ("head.surface", field_cell("surface"), False),
            ("head.parameter", field_cell("parameter"), False),
            ("head.value", field_cell("value"), False),
            ("head.origin", field_cell("origin"), False),
            ("head.ignored", lambda r: condition_text(r.get("ignored") or []), False),
        ],
    )


def fingerprint_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("fingerprint_diff.caption"),
        model.rows(model.data(report).get("fingerprint_diff")),
        [
            ("head.field", field_cell("field"), False),
            ("head.a", field_cell("a"), False),
            ("head.b", field_cell("b"), False),
            ("head.severity", field_cell("severity"), False),
            ("head.acts_on", field_cell("acts_on"), False),
        ],
    )


def input_table(report: model.Report, say: Say) -> Table:
    diff = model.mapping(model.data(report).get("input_diff"))
    return make_table(
        say,
        say("input_diff.caption"),
        model.rows(diff.get("hunks")),
        [
            ("head.offset_a", field_cell("offset_a"), True),
            ("head.offset_b", field_cell("offset_b"), True),
            ("head.a", lambda r: hunk_text(r.get("a")), False),
            ("head.b", lambda r: hunk_text(r.get("b")), False),
            ("head.names", lambda r: condition_text(r.get("names") or []), False),
        ],
    )


def hunk_text(value: Any) -> str:
    """One side of a byte difference; look-alikes are told apart by their code points.

    Combining marks are spelled, and a short side with other than ASCII letters lists them.
    """
    if value is None:
        return "–"
    text = str(value)
    spelled = "".join(escape_of(c) if unicodedata.category(c).startswith("M") else c for c in text)
    shown = one_line(spelled, 400)
    points = [f"U+{ord(c):04X}" for c in text if ord(c) > 126 and c.isprintable()]
    return f"{shown} [{' '.join(points)}]" if points and len(text) <= 12 else shown
