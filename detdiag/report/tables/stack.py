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
        [
            row
            for table in model.table_everywhere(report, "fingerprint_diff")
            for row in model.rows(table)
        ],
        [
            ("head.field", field_cell("field"), False),
            ("head.a", field_cell("a"), False),
            ("head.b", field_cell("b"), False),
            ("head.severity", field_cell("severity"), False),
            ("head.acts_on", field_cell("acts_on"), False),
        ],
    )


def input_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("input_diff.caption"),
        [
            hunk
            for diff in model.table_everywhere(report, "input_diff")
            for hunk in model.rows(model.mapping(diff).get("hunks"))
        ],
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


def tokens_table(report: model.Report, say: Say) -> Table:
    """Token ids where two tokenisations of one text part."""
    return make_table(
        say,
        say("token_diff.caption"),
        [
            hunk
            for diff in model.table_everywhere(report, "token_diff")
            for hunk in model.rows(model.mapping(diff).get("hunks"))
        ],
        [
            ("head.start_a", field_cell("start_a"), True),
            ("head.start_b", field_cell("start_b"), True),
            ("head.a", lambda r: ids_text(r.get("a")), False),
            ("head.b", lambda r: ids_text(r.get("b")), False),
        ],
    )


def ids_text(value: Any) -> str:
    """Token ids separated by spaces, the first 40 of them."""
    ids = list(value) if isinstance(value, (list, tuple)) else []
    return " ".join(one_line(v, 20) for v in ids[:40]) + (" …" if len(ids) > 40 else "")
