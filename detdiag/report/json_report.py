"""JSON: exactly the report dict, schema ``detdiag.report/1``."""

from __future__ import annotations

from detdiag.report.model import Report
from detdiag.report.safe import dump_json


def render_json(report: Report) -> str:
    """The dict as strict JSON in its own key order, ending in a newline."""
    return dump_json(report) + "\n"
