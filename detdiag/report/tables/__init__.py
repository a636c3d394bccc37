"""The numbers behind every figure as plain tables, shared by HTML and Markdown."""

from __future__ import annotations

from detdiag.report.tables.core import Table, condition_text, phrase
from detdiag.report.tables.counts import (
    contrasts_table,
    controls_table,
    evidence_table,
    ladder_table,
)
from detdiag.report.tables.endpoint import capabilities_table, phases_table
from detdiag.report.tables.numerics import (
    RISKIEST,
    heatmap_table,
    margins_table,
    operators_table,
    riskiest_margins,
    sweep_table,
    toggles_table,
)
from detdiag.report.tables.remedies import measured_text, skipped_lines, trials_of, trials_table
from detdiag.report.tables.routing import router_margins_table, routing_table
from detdiag.report.tables.stack import fingerprint_table, input_table, params_table, tokens_table

__all__ = [
    "RISKIEST",
    "Table",
    "capabilities_table",
    "condition_text",
    "contrasts_table",
    "controls_table",
    "evidence_table",
    "fingerprint_table",
    "heatmap_table",
    "input_table",
    "ladder_table",
    "margins_table",
    "measured_text",
    "operators_table",
    "params_table",
    "phases_table",
    "phrase",
    "riskiest_margins",
    "router_margins_table",
    "routing_table",
    "skipped_lines",
    "sweep_table",
    "toggles_table",
    "tokens_table",
    "trials_of",
    "trials_table",
]
