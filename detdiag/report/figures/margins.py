"""Margin against noise floor: are flips explained by numerics?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detdiag.report import model
from detdiag.report.figures.style import (
    BLUE,
    GREY,
    MAX_SAFE_POINTS,
    PURPLE,
    VERMILION,
    floor_of,
    layout,
    log_axis,
    plain,
    rail,
)
from detdiag.report.messages import Say
from detdiag.report.numbers import number, rounded
from detdiag.report.safe import finite

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def margins_scatter(report: model.Report, say: Say) -> Figure | None:
    """Margin against noise floor, one mark a position; None without a measured noise floor."""
    points = [
        (noise, margin, row)
        for row in model.rows(report.get("margins"))
        if (noise := finite(row.get("noise_logits"))) is not None
        and (margin := finite(row.get("margin_logits"))) is not None
    ]
    if not points:
        return None
    import plotly.graph_objects as go

    floor = floor_of([v for noise, margin, _ in points for v in (noise, margin)])
    classes: dict[str, list[tuple[float, float, Mapping[str, Any]]]] = {
        "safe": [],
        "at_risk": [],
        "flipped": [],
        "unexplained": [],
    }
    for noise, margin, row in points:
        below = margin <= noise
        kind = (
            ("flipped" if below else "unexplained")
            if row.get("flipped")
            else ("at_risk" if below else "safe")
        )
        classes[kind].append((max(noise, floor), max(margin, floor), row))
    counts = {kind: len(members) for kind, members in classes.items()}
    classes["safe"] = classes["safe"][:: len(classes["safe"]) // MAX_SAFE_POINTS + 1]
    looks = {
        "safe": {"symbol": "circle-open", "size": 6, "color": GREY},
        "at_risk": {"symbol": "diamond", "size": 8, "color": BLUE},
        "flipped": {"symbol": "circle", "size": 10, "color": VERMILION},
        "unexplained": {"symbol": "x", "size": 11, "color": PURPLE},
    }
    figure = go.Figure(
        layout=layout(440, 44, xaxis=log_axis(say("margins.x")), yaxis=log_axis(say("margins.y")))
    )
    x_range = _range([a for members in classes.values() for a, _, _ in members])
    y_range = _range([b for members in classes.values() for _, b, _ in members])
    figure.update_layout(xaxis={"range": x_range}, yaxis={"range": y_range})
    ends = [rounded(10 ** min(x_range[0], y_range[0])), rounded(10 ** max(x_range[1], y_range[1]))]
    figure.add_scatter(
        x=ends,
        y=ends,
        mode="lines",
        hoverinfo="skip",
        name=say("margins.line"),
        line={"color": GREY, "width": 1.5, "dash": "dash"},
    )
    if any(margin == 0 for _, margin, _ in points):
        rail(figure, floor, say("margins.tie"))
    for kind, members in classes.items():
        if members:
            figure.add_scatter(
                x=[rounded(a) for a, _, _ in members],
                y=[rounded(b) for _, b, _ in members],
                text=[_margin_label(row) for _, _, row in members],
                hovertemplate="%{text}<br>%{y} / %{x}<extra></extra>",
                mode="markers",
                name=f"{say('margins.' + kind)} ({counts[kind]})",
                marker=looks[kind],
            )
    return figure


def _range(values: Sequence[float]) -> list[float]:
    """A range on a logarithmic axis (exponents) with room around the marks, at least a decade."""
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(0.12, (1 - (high - low)) / 2)
    return [round(low - room, 3), round(high + room, 3)]


def _margin_label(row: Mapping[str, Any]) -> str:
    token = row.get("token")
    shown = "" if token is None else f" {plain(token, 24)}"
    return f"{plain(row.get('query'), 24)} #{number(row.get('position'))}{shown}"
