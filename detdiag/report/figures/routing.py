"""Expert choice: which places were routed another way, and at which router margins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detdiag.report import model
from detdiag.report.figures.style import (
    FLIP_SCALE,
    GREY,
    MAX_SAFE_POINTS,
    VERMILION,
    axis,
    floor_of,
    layout,
    log_axis,
    rail,
    token_ticks,
)
from detdiag.report.messages import Say
from detdiag.report.numbers import number, rounded
from detdiag.report.safe import finite

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def expert_flips(report: model.Report, say: Say) -> Figure | None:
    """Blocks by token, shade is how many experts changed; beside it the flip rate of each block."""
    routing = model.mapping(model.data(report).get("routing"))
    grid = [list(line) for line in routing.get("changed") or [] if isinstance(line, (list, tuple))]
    blocks = [str(b) for b in routing.get("blocks") or []][: len(grid)]
    if not blocks or not grid:
        return None
    from plotly.subplots import make_subplots

    rates = list(routing.get("flip_rate") or [])
    figure = make_subplots(
        rows=1,
        cols=2 if rates else 1,
        shared_yaxes=True,
        horizontal_spacing=0.02,
        column_widths=[0.82, 0.18] if rates else [1.0],
    )
    columns = list(range(min(512, max(len(line) for line in grid))))
    figure.add_heatmap(
        x=columns,
        y=blocks,
        z=[[int(finite(v) or 0) for v in line[: len(columns)]] for line in grid],
        colorscale=FLIP_SCALE,
        zmin=0,
        zmax=max(1, max((int(finite(v) or 0) for line in grid for v in line), default=1)),
        xgap=1 if len(columns) <= 80 else 0,
        ygap=1,
        colorbar={
            "title": {"text": say("routing.colour"), "side": "right", "font": {"size": 12}},
            "thickness": 12,
            "dtick": 1,
        },
        hovertemplate="#%{x} · %{y}: %{z}<extra></extra>",
        row=1,
        col=1,
    )
    figure.update_layout(layout(max(240, 110 + 24 * len(blocks))))
    tokens = list(routing.get("tokens") or [])
    figure.update_layout(
        xaxis=axis(say("heatmap.x"), showgrid=False, **token_ticks(tokens, columns)),
        yaxis=axis(say("head.block"), type="category", autorange="reversed", showgrid=False),
    )
    if rates:
        figure.add_bar(
            x=[rounded(r) for r in rates[: len(blocks)]],
            y=blocks,
            orientation="h",
            showlegend=False,
            marker={"color": VERMILION},
            hovertemplate="%{y}: %{x:.1%}<extra></extra>",
            row=1,
            col=2,
        )
        top = max((finite(r) or 0.0 for r in rates), default=0.0)
        figure.update_layout(
            xaxis2=axis(
                say("head.flip_rate"), tickformat=".0%", range=[0, max(0.05, top * 1.1)], nticks=3
            ),
            yaxis2={
                "fixedrange": True,
                "type": "category",
                "autorange": "reversed",
                "showticklabels": False,
            },
        )
    return figure


def routing_margins(report: model.Report, say: Say) -> Figure | None:
    """Router margin between rank k and k+1 for each block; changed choices marked."""
    table = model.rows(model.mapping(model.data(report).get("routing")).get("margins"))
    table = [r for r in table if finite(r.get("margin")) is not None]
    if not table:
        return None
    import plotly.graph_objects as go

    floor = floor_of([finite(r["margin"]) or 0.0 for r in table])
    figure = go.Figure(
        layout=layout(
            400,
            44,
            xaxis=axis(say("head.block"), type="category"),
            yaxis=log_axis(say("head.router_margin")),
        )
    )
    if any(finite(r["margin"]) == 0 for r in table):
        rail(figure, floor, say("margins.tie"))
    for changed, name, look in (
        (False, "router_margins.same", {"symbol": "circle-open", "size": 6, "color": GREY}),
        (True, "router_margins.changed", {"symbol": "diamond", "size": 9, "color": VERMILION}),
    ):
        members = [r for r in table if bool(r.get("changed")) is changed]
        count = len(members)
        if not changed:
            members = members[:: len(members) // MAX_SAFE_POINTS + 1]
        if members:
            figure.add_scatter(
                x=[str(r.get("block")) for r in members],
                y=[rounded(max(finite(r["margin"]) or 0.0, floor)) for r in members],
                text=[f"#{number(r.get('position'))}" for r in members],
                hovertemplate="%{text} · %{x}: %{y}<extra></extra>",
                mode="markers",
                name=f"{say(name)} ({count})",
                marker=look,
            )
    blocks = sorted(
        {r.get("block") for r in table}, key=lambda b: (finite(b) is None, finite(b) or 0, str(b))
    )
    figure.update_layout(
        xaxis={"categoryorder": "array", "categoryarray": [str(b) for b in blocks]}
    )
    return figure
