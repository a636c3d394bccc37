"""What a server can do, and which phases of a live walk ran on it."""

from __future__ import annotations

from detdiag.report import model
from detdiag.report.messages import Say
from detdiag.report.tables.core import Table, field_cell, make_table


def capabilities_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("capabilities.caption"),
        model.rows(model.data(report).get("capabilities")),
        [
            ("head.server", field_cell("server"), False),
            ("head.capability", field_cell("name"), False),
            ("head.state", field_cell("state"), False),
            ("head.note", field_cell("note"), False),
        ],
    )


def phases_table(report: model.Report, say: Say) -> Table:
    return make_table(
        say,
        say("phases.caption"),
        model.rows(model.data(report).get("phases")),
        [
            ("head.phase", field_cell("phase"), False),
            ("head.state", field_cell("state"), False),
            ("head.requests", field_cell("requests"), True),
            ("head.seconds", field_cell("seconds"), True),
            ("head.note", field_cell("reason"), False),
        ],
    )
