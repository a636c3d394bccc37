"""The Plotly figures, one function each: pure functions from the report to a figure or None.

Data is rounded, ``template`` is "none" and every figure is drawn once, so the same report gives
the same bytes. No meaning is carried by colour alone.
"""

from __future__ import annotations

from detdiag.report.figures.heatmap import divergence_heatmap, heatmap_window
from detdiag.report.figures.margins import margins_scatter
from detdiag.report.figures.routing import expert_flips, routing_margins
from detdiag.report.figures.sweep import batch_sweep

__all__ = [
    "batch_sweep",
    "divergence_heatmap",
    "expert_flips",
    "heatmap_window",
    "margins_scatter",
    "routing_margins",
]
