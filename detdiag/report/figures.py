"""The Plotly figures, one function each: pure functions from report tables to a figure.

Data is rounded, ``template`` is "none" and every figure is drawn once, so the same report gives
the same bytes. Text and grid colours come from the page's style sheet, so that figures follow
dark mode and print; mark colours keep 3:1 on both grounds and never carry meaning alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from detdiag.report import model
from detdiag.report.messages import Say
from detdiag.report.numbers import number, rounded, share, wilson
from detdiag.report.safe import finite, one_line

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

GREY: Final = "#767676"
BLUE: Final = "#0072B2"
VERMILION: Final = "#D55E00"
GREEN: Final = "#009E73"
PURPLE: Final = "#AA5C9F"
SERIES: Final = (BLUE, VERMILION, GREEN, PURPLE, GREY)
SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "x")
MAX_SAFE_POINTS: Final = 1500
MAX_CELLS: Final = 24_000
MAX_TICK_TOKENS: Final = 40


def _layout(height: int, **extra: Any) -> dict[str, Any]:
    return {
        "template": "none",
        "height": height,
        "margin": {"l": 64, "r": 20, "t": 16, "b": 56},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"},
        "dragmode": False,
        "hovermode": "closest",
        **extra,
    }


def _axis(title: str, **extra: Any) -> dict[str, Any]:
    return {
        "title": {"text": title},
        "automargin": True,
        "fixedrange": True,
        "zeroline": False,
        "gridcolor": "rgba(128,128,128,0.25)",
        **extra,
    }


def _log_axis(title: str, **extra: Any) -> dict[str, Any]:
    return _axis(title, type="log", exponentformat="power", dtick=1, **extra)


def _plain(text: Any, limit: int = 60) -> str:
    """Text for hover labels and ticks: hidden characters spelled, no markup.

    Plotly reads a small HTML subset in text; ``<`` as an entity is shown as it is.
    """
    shown = one_line(text, limit)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _floor(values: Sequence[float]) -> float:
    """Where a logarithmic axis shows zero: half a decade below the smallest positive value."""
    positive = [v for v in values if v > 0]
    return rounded(min(positive) / 3) or 1e-6 if positive else 1e-6


def margins_scatter(report: model.Report, say: Say) -> Figure | None:
    """Margin against noise floor, one mark a position; None without a measured noise floor."""
    import plotly.graph_objects as go

    points = [
        (noise, margin, row)
        for row in model.rows(report.get("margins"))
        if (noise := finite(row.get("noise_logits"))) is not None
        and (margin := finite(row.get("margin_logits"))) is not None
    ]
    if not points:
        return None
    floor = _floor([v for noise, margin, _ in points for v in (noise, margin)])
    classes: dict[str, list[tuple[float, float, Mapping[str, Any]]]] = {
        "safe": [], "at_risk": [], "flipped": [], "unexplained": []
    }  # fmt: skip
    for noise, margin, row in points:
        below = margin <= noise
        kind = ("flipped" if below else "unexplained") if row.get("flipped") else (
            "at_risk" if below else "safe")  # fmt: skip
        classes[kind].append((max(noise, floor), max(margin, floor), row))
    classes["safe"] = classes["safe"][:: len(classes["safe"]) // MAX_SAFE_POINTS + 1]
    looks = {
        "safe": {"symbol": "circle-open", "size": 6, "color": GREY},
        "at_risk": {"symbol": "diamond", "size": 8, "color": BLUE},
        "flipped": {"symbol": "circle", "size": 10, "color": VERMILION},
        "unexplained": {"symbol": "x", "size": 11, "color": PURPLE},
    }
    figure = go.Figure(
        layout=_layout(420, xaxis=_log_axis(say("margins.x")), yaxis=_log_axis(say("margins.y")))
    )
    ends = [min(min(a, b) for k in classes.values() for a, b, _ in k),
            max(max(a, b) for k in classes.values() for a, b, _ in k)]  # fmt: skip
    ends = [rounded(ends[0] / 1.3) or floor, rounded(ends[1] * 1.3) or 1.0]
    figure.add_scatter(
        x=ends, y=ends, mode="lines", hoverinfo="skip", name=say("margins.line"),
        line={"color": GREY, "width": 1.5, "dash": "dash"},
    )  # fmt: skip
    for kind, members in classes.items():
        if members:
            figure.add_scatter(
                x=[rounded(a) for a, _, _ in members],
                y=[rounded(b) for _, b, _ in members],
                text=[_margin_label(row) for _, _, row in members],
                hovertemplate="%{text}<br>%{y} / %{x}<extra></extra>",
                mode="markers",
                name=f"{say('margins.' + kind)} ({len(members)})",
                marker=looks[kind],
            )
    return figure


def _margin_label(row: Mapping[str, Any]) -> str:
    token = row.get("token")
    shown = "" if token is None else f" {_plain(token, 24)}"
    return f"{_plain(row.get('query'), 24)} #{number(row.get('position'))}{shown}"


def heatmap_window(report: model.Report) -> tuple[int, int]:
    """Token columns ``[start, stop)`` that fit :data:`MAX_CELLS`, holding the first divergence."""
    heat = model.mapping(model.data(report).get("heatmap"))
    grid = heat.get("log10_rel") or []
    wide = max((len(line) for line in grid if isinstance(line, (list, tuple))), default=0)
    room = max(8, MAX_CELLS // max(1, len(grid)))
    if wide <= room:
        return 0, wide
    token = int(finite(model.mapping(heat.get("first")).get("token")) or 0)
    start = min(max(0, token - room // 4), wide - room)
    return start, start + room


def divergence_heatmap(report: model.Report, say: Say) -> Figure | None:
    """Modules in depth order by token; colour is log10 of the relative difference."""
    import plotly.graph_objects as go

    heat = model.mapping(model.data(report).get("heatmap"))
    modules = [str(m) for m in heat.get("modules") or []]
    grid = [list(line) for line in heat.get("log10_rel") or [] if isinstance(line, (list, tuple))]
    if not modules or not grid:
        return None
    start, stop = heatmap_window(report)
    names = _short_modules(modules)
    tokens = list(heat.get("tokens") or [])
    columns = list(range(start, stop))
    figure = go.Figure(
        layout=_layout(
            min(1400, max(260, 110 + 15 * len(modules))),
            xaxis=_axis(say("heatmap.x"), showgrid=False, **_token_ticks(tokens, columns)),
            yaxis=_axis("", autorange="reversed", showgrid=False, tickmode="array",
                        tickvals=list(range(len(names))), ticktext=names, tickfont={"size": 11}),
        )
    )  # fmt: skip
    figure.add_heatmap(
        x=columns,
        y=list(range(len(names))),
        z=[[rounded(v, 3) for v in line[start:stop]] for line in grid],
        colorscale="Cividis",
        hoverongaps=False,
        xgap=1 if len(columns) <= 80 else 0,
        ygap=1,
        colorbar={
            "title": {"text": say("heatmap.colour"), "side": "right"},
            "thickness": 12,
            "len": 0.9,
        },
        hovertemplate="#%{x} · %{y}: %{z}<extra></extra>",
    )
    first = model.mapping(heat.get("first"))
    column = finite(first.get("token"))
    if first.get("module") in modules and column is not None and start <= column < stop:
        _outline(
            figure, int(column), modules.index(str(first["module"])), say("heatmap.first_mark")
        )
    return figure


def _outline(figure: Figure, column: int, row: int, label: str) -> None:
    figure.add_shape(
        type="rect", x0=column - 0.5, x1=column + 0.5, y0=row - 0.5, y1=row + 0.5,
        line={"color": VERMILION, "width": 3},
    )  # fmt: skip
    figure.add_annotation(
        x=column, y=row, text=label, showarrow=True, arrowhead=2, ax=46, ay=-24,
        arrowcolor=VERMILION, font={"size": 12},
    )  # fmt: skip


def _short_modules(modules: Sequence[str]) -> list[str]:
    """Module paths without the leading components that all of them share."""
    split = [m.split(".") for m in modules]
    same = 0
    while all(len(parts) > same + 1 for parts in split) and len({p[same] for p in split}) == 1:
        same += 1
    return [_plain(".".join(parts[same:]), 44) for parts in split]


def _token_ticks(tokens: Sequence[Any], columns: Sequence[int]) -> dict[str, Any]:
    if not tokens or len(columns) > MAX_TICK_TOKENS:
        return {"tickformat": "d"}
    shown = [c for c in columns if c < len(tokens)]
    return {
        "tickmode": "array",
        "tickvals": shown,
        "ticktext": [_plain(tokens[c], 12) for c in shown],
        "tickangle": -60,
        "tickfont": {"size": 11},
    }


def batch_sweep(report: model.Report, say: Say) -> Figure | None:
    """Largest logit difference over batch size (log2), and below it the flip rate."""
    from plotly.subplots import make_subplots

    table = [r for r in model.rows(model.data(report).get("sweep")) if finite(r.get("batch_size"))]
    if not table:
        return None
    sizes = sorted({int(finite(r["batch_size"]) or 1) for r in table})
    flips = [r for r in table if share(r, "flips") is not None]
    figure = make_subplots(
        rows=2 if flips else 1, cols=1, shared_xaxes=True, vertical_spacing=0.09,
        row_heights=[0.66, 0.34] if flips else [1.0],
    )  # fmt: skip
    floor = _floor([finite(r.get("max_abs_logit")) or 0.0 for r in table])
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in table:
        groups.setdefault(_sweep_group(row), []).append(row)
    for place, (name, members) in enumerate(sorted(groups.items())):
        members = sorted(members, key=lambda r: (finite(r["batch_size"]) or 0, str(r.get("query"))))
        colour, symbol = SERIES[place % 5], SYMBOLS[place % 5]
        figure.add_scatter(
            x=[int(finite(r["batch_size"]) or 1) for r in members],
            y=[floor if r.get("bit_equal") else rounded(max(finite(r.get("max_abs_logit")) or 0.0, floor))
               for r in members],
            mode="markers",
            name=_plain(name) or say("sweep.all"),
            marker={
                "color": colour, "size": 9, "line": {"width": 2, "color": colour},
                "symbol": [symbol + ("-open" if r.get("bit_equal") else "") for r in members],
            },
            text=[_plain(r.get("query"), 24) for r in members],
            hovertemplate="%{text} · %{x}: %{y}<extra></extra>",
            row=1, col=1,
        )  # fmt: skip
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
    figure.update_layout(_layout(460 if flips else 340))
    figure.update_layout(
        xaxis=_axis("" if flips else say("sweep.x"), **ticks), yaxis=_log_axis(say("sweep.y"))
    )
    figure.add_hline(y=floor, line={"color": GREY, "width": 1, "dash": "dot"}, row=1, col=1)
    figure.add_annotation(
        x=1, xref="x domain", y=_log10(floor), yref="y", yshift=10, xanchor="right",
        showarrow=False, text=say("sweep.rail"), font={"size": 12},
    )  # fmt: skip
    if flips:
        figure.update_layout(
            xaxis2=_axis(say("sweep.x"), **ticks),
            yaxis2=_axis(say("sweep.flips_y"), range=[-0.05, 1.05], tickformat=".0%"),
        )
    return figure


def _log10(value: float) -> float:
    """A position on a logarithmic axis: annotations take the exponent."""
    import math

    return round(math.log10(value), 6)


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
        x=sorted(best), y=[rounded(best[s]) for s in sorted(best)], mode="lines",
        line={"color": colour, "width": 1.5}, hoverinfo="skip", showlegend=False, row=1, col=1,
    )  # fmt: skip


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
        x=sizes, y=[rounded(rate[s]) for s in sizes], mode="lines+markers", showlegend=False,
        line={"color": colour, "width": 1.5}, marker={"color": colour, "size": 8, "symbol": symbol},
        error_y={
            "type": "data", "symmetric": False, "thickness": 1.2, "width": 4, "color": colour,
            "array": [rounded(max(0.0, ends[s][1] - rate[s])) for s in sizes],
            "arrayminus": [rounded(max(0.0, rate[s] - ends[s][0])) for s in sizes],
        },
        text=[f"{totals[s][0]}/{totals[s][1]}" for s in sizes],
        hovertemplate="%{x}: %{text}<extra></extra>", row=2, col=1,
    )  # fmt: skip


def expert_flips(report: model.Report, say: Say) -> Figure | None:
    """Blocks by token, shade is how many experts changed; beside it the flip rate of each block."""
    from plotly.subplots import make_subplots

    routing = model.mapping(model.data(report).get("routing"))
    grid = [list(line) for line in routing.get("changed") or [] if isinstance(line, (list, tuple))]
    blocks = [str(b) for b in routing.get("blocks") or []][: len(grid)]
    if not blocks or not grid:
        return None
    rates = list(routing.get("flip_rate") or [])
    figure = make_subplots(
        rows=1, cols=2 if rates else 1, shared_yaxes=True, horizontal_spacing=0.02,
        column_widths=[0.82, 0.18] if rates else [1.0],
    )  # fmt: skip
    columns = list(range(min(512, max(len(line) for line in grid))))
    figure.add_heatmap(
        x=columns,
        y=blocks,
        z=[[int(finite(v) or 0) for v in line[: len(columns)]] for line in grid],
        colorscale=[[0, "rgba(128,128,128,0.12)"], [0.01, "#7c7b78"], [1, "#fee838"]],
        zmin=0,
        zmax=max(1, max((int(finite(v) or 0) for line in grid for v in line), default=1)),
        xgap=1 if len(columns) <= 80 else 0,
        ygap=1,
        colorbar={"title": {"text": say("routing.colour"), "side": "right"}, "thickness": 12, "dtick": 1},
        hovertemplate="#%{x} · %{y}: %{z}<extra></extra>",
        row=1, col=1,
    )  # fmt: skip
    figure.update_layout(_layout(max(240, 110 + 24 * len(blocks))))
    tokens = list(routing.get("tokens") or [])
    figure.update_layout(
        xaxis=_axis(say("heatmap.x"), showgrid=False, **_token_ticks(tokens, columns)),
        yaxis=_axis(say("head.block"), type="category", autorange="reversed", showgrid=False),
    )
    if rates:
        figure.add_bar(
            x=[rounded(r) for r in rates[: len(blocks)]], y=blocks, orientation="h", showlegend=False,
            marker={"color": VERMILION}, hovertemplate="%{y}: %{x:.1%}<extra></extra>", row=1, col=2,
        )  # fmt: skip
        top = max((finite(r) or 0.0 for r in rates), default=0.0)
        figure.update_layout(
            xaxis2=_axis(
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
    import plotly.graph_objects as go

    table = model.rows(model.mapping(model.data(report).get("routing")).get("margins"))
    table = [r for r in table if finite(r.get("margin")) is not None]
    if not table:
        return None
    floor = _floor([finite(r["margin"]) or 0.0 for r in table])
    figure = go.Figure(
        layout=_layout(
            380,
            xaxis=_axis(say("head.block"), type="category"),
            yaxis=_log_axis(say("head.router_margin")),
        )
    )
    for changed, look in (
        (False, {"symbol": "circle-open", "size": 6, "color": GREY}),
        (True, {"symbol": "diamond", "size": 9, "color": VERMILION}),
    ):
        members = [r for r in table if bool(r.get("changed")) is changed]
        if not changed:
            members = members[:: len(members) // MAX_SAFE_POINTS + 1]
        if members:
            figure.add_scatter(
                x=[str(r.get("block")) for r in members],
                y=[rounded(max(finite(r["margin"]) or 0.0, floor)) for r in members],
                text=[f"#{number(r.get('position'))}" for r in members],
                hovertemplate="%{text} · %{x}: %{y}<extra></extra>",
                mode="markers",
                name=f"{say('router_margins.changed' if changed else 'router_margins.same')} ({len(members)})",
                marker=look,
            )
    blocks = sorted(
        {r.get("block") for r in table}, key=lambda b: (finite(b) is None, finite(b) or 0, str(b))
    )
    figure.update_layout(
        xaxis={"categoryorder": "array", "categoryarray": [str(b) for b in blocks]}
    )
    return figure


__all__ = [
    "batch_sweep",
    "divergence_heatmap",
    "expert_flips",
    "heatmap_window",
    "margins_scatter",
    "routing_margins",
]
