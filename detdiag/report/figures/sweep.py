"""Batch sweep: logit difference and flip rate over batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detdiag.report import model
from detdiag.report.figures.style import (
    SERIES,
    SYMBOLS,
    axis,
    floor_of,
    layout,
    log_axis,
    plain,
    rail,
)
from detdiag.report.messages import Say
from detdiag.report.numbers import rounded, share, wilson
from detdiag.report.safe import finite, one_line

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def batch_sweep(report: model.Report, say: Say) -> Figure | None:
    """Largest logit difference over batch size (log2), and below it the flip rate."""
    table = [r for r in model.rows(model.data(report).get("sweep")) if finite(r.get("batch_size"))]
    if not table:
        return None
    from plotly.subplots import make_subplots

    sizes = sorted({int(finite(r["batch_size"]) or 1) for r in table})
    flips = [r for r in table if share(r, "flips") is not None]
    figure = make_subplots(
        rows=2 if flips else 1,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.09,
        row_heights=[0.66, 0.34] if flips else [1.0],
    )
    floor = floor_of([finite(r.get("max_abs_logit")) or 0.0 for r in table])
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in table:
        groups.setdefault(_sweep_group(row), []).append(row)
    for place, (name, members) in enumerate(sorted(groups.items())):
        members = sorted(members, key=lambda r: (finite(r["batch_size"]) or 0, str(r.get("query"))))
        colour, symbol = SERIES[place % 5], SYMBOLS[place % 5]
        figure.add_scatter(
            x=[int(finite(r["batch_size"]) or 1) for r in members],
            y=[
                floor
                if r.get("bit_equal")
                else rounded(max(finite(r.get("max_abs_logit")) or 0.0, floor))
                for r in members
            ],
            mode="markers",
            name=plain(name) or say("sweep.all"),
            marker={
                "color": colour,
                "size": 9,
                "line": {"width": 2, "color": colour},
                "symbol": [symbol + ("-open" if r.get("bit_equal") else "") for r in members],
            },
            text=[plain(r.get("query"), 24) for r in members],
            hovertemplate="%{text} · %{x}: %{y}<extra></extra>",
            row=1,
            col=1,
        )
        _sweep_line(figure, members, floor, colour)
        if flips:
            _flip_rates(figure, members, colour, symbol)
    noise = finite(model.data(report).get("sweep_noise_logits"))
    if noise and noise > floor:
        figure.add_hrect(
            y0=floor, y1=noise, fillcolor="rgba(128,128,128,0.2)", line_width=0, row=1, col=1
        )
    ticks = {
        "type": "log",
        "tickmode": "array",
        "tickvals": sizes,
        "ticktext": [str(s) for s in sizes],
    }
    figure.update_layout(layout(480 if flips else 360, 44))
    figure.update_layout(
        xaxis=axis("" if flips else say("sweep.x"), **ticks), yaxis=log_axis(say("sweep.y"))
    )
    rail(figure, floor, say("sweep.rail"))
    if flips:
        figure.update_layout(
            xaxis2=axis(say("sweep.x"), **ticks),
            yaxis2=axis(say("sweep.flips_y"), range=[-0.05, 1.05], tickformat=".0%"),
        )
    return figure


def _sweep_group(row: Mapping[str, Any]) -> str:
    parts = [row.get("padding_side"), row.get("neighbours")]
    return " · ".join(one_line(p, 30) for p in parts if p not in (None, ""))


def _sweep_line(
    figure: Figure, members: Sequence[Mapping[str, Any]], floor: float, colour: str
) -> None:
    """The largest difference of any prompt at each batch size, as a line."""
    best: dict[int, float] = {}
    for row in members:
        size = int(finite(row["batch_size"]) or 1)
        value = 0.0 if row.get("bit_equal") else finite(row.get("max_abs_logit")) or 0.0
        best[size] = max(best.get(size, 0.0), value, floor)
    figure.add_scatter(
        x=sorted(best),
        y=[rounded(best[s]) for s in sorted(best)],
        mode="lines",
        line={"color": colour, "width": 1.5},
        hoverinfo="skip",
        showlegend=False,
        row=1,
        col=1,
    )


def _flip_rates(
    figure: Figure, members: Sequence[Mapping[str, Any]], colour: str, symbol: str
) -> None:
    """Token flips of all prompts of a batch size together, with a Wilson interval."""
    totals: dict[int, tuple[int, int]] = {}
    for row in members:
        if share(row, "flips") is not None:
            size = int(finite(row["batch_size"]) or 1)
            k, n = totals.get(size, (0, 0))
            totals[size] = (k + int(row["flips"]), n + int(row["n"]))
    sizes = sorted(totals)
    ends = {s: wilson(*totals[s]) for s in sizes}
    rate = {s: totals[s][0] / totals[s][1] for s in sizes}
    figure.add_scatter(
        x=sizes,
        y=[rounded(rate[s]) for s in sizes],
        mode="lines+markers",
        showlegend=False,
        line={"color": colour, "width": 1.5},
        marker={"color": colour, "size": 8, "symbol": symbol},
        error_y={
            "type": "data",
            "symmetric": False,
            "thickness": 1.2,
            "width": 4,
            "color": colour,
            "array": [rounded(max(0.0, ends[s][1] - rate[s])) for s in sizes],
            "arrayminus": [rounded(max(0.0, rate[s] - ends[s][0])) for s in sizes],
        },
        text=[f"{totals[s][0]}/{totals[s][1]}" for s in sizes],
        hovertemplate="%{x}: %{text}<extra></extra>",
        row=2,
        col=1,
    )
