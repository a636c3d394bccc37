"""The plots: agreement by prompt, survival of the common prefix, score by condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from detdiag.report.figures.style import BLUE, GREY, SERIES, SYMBOLS, VERMILION, axis, layout, plain
from detdiag.report.messages import Say
from detdiag.report.numbers import rounded

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_PROMPTS: Final = 60
"""Prompts drawn, the least repeatable first; all of them are in the table."""
DASHES: Final = ("solid", "dash", "dot", "dashdot", "longdash")


def by_prompt(score: Mapping[str, Any], say: Say) -> Figure | None:
    """Agreement of each prompt, one mark a condition and one for all conditions together."""
    rows = [row for row in score["prompts"] if row["agreement"] is not None]
    if not rows:
        return None
    import plotly.graph_objects as go

    rows = sorted(rows, key=lambda row: (row["agreement"], row["query"]))[:MOST_PROMPTS]
    names = [plain(row["query"], 28) for row in rows]
    figure = go.Figure()
    conditions = [c["condition"] for c in score["conditions"]]
    views = [("view.all", [row["agreement"] for row in rows])]
    if len(conditions) > 1:
        views += [(c, [row["by_condition"].get(c) for row in rows]) for c in conditions]
    for place, (name, values) in enumerate(views):
        colour, symbol = SERIES[place % 5], SYMBOLS[place % 5]
        figure.add_scatter(
            x=[rounded(v) for v in values],
            y=names,
            mode="markers",
            name=say(name) if name == "view.all" else plain(name),
            marker={
                "color": colour,
                "size": 11 if place == 0 else 9,
                "symbol": symbol if place == 0 else f"{symbol}-open",
                "line": {"width": 2, "color": colour},
            },
            hovertemplate="%{y}: %{x}<extra></extra>",
        )
    lowest = min([v for _, values in views for v in values if v is not None], default=0.0)
    figure.update_layout(
        layout(90 + 26 * len(rows), 44),
        xaxis=axis(say("axis.agreement"), range=_range(lowest)),
        yaxis=axis("", type="category", autorange="reversed"),
    )
    _target_line(figure, score)
    return figure


def _range(lowest: float) -> list[float]:
    """An axis of shares from a little below ``lowest`` to a little above 1."""
    low = max(0.0, lowest - 0.1)
    return [low - 0.03 * (1.0 - low), 1.0 + 0.04 * (1.0 - low)]


def _target_line(figure: Figure, score: Mapping[str, Any]) -> None:
    target = score["summary"]["target"]
    if target is not None:
        line = {"color": GREY, "width": 1.5, "dash": "dot"}
        figure.add_shape(type="line", x0=target, x1=target, y0=0, y1=1, yref="y domain", line=line)


def survival(score: Mapping[str, Any], say: Say) -> Figure | None:
    """Share of pairs that still share their first t positions, one step line a condition."""
    curves = [c for c in score["survival"]["curves"] if len(c["t"]) > 1]
    if not curves:
        return None
    import plotly.graph_objects as go

    if len(curves) == 2:
        curves = curves[:1]
    figure = go.Figure()
    for place, curve in enumerate(curves):
        name = say("view.all") if curve["condition"] == "all" else plain(curve["condition"])
        figure.add_scatter(
            x=curve["t"],
            y=[rounded(v) for v in curve["share"]],
            mode="lines",
            name=name,
            line={
                "shape": "hv",
                "color": SERIES[place % 5],
                "dash": DASHES[place % 5],
                "width": 3 if place == 0 else 2,
            },
            hovertemplate="%{x}: %{y}<extra></extra>",
        )
    unit = say(f"unit.{score['survival']['unit']}")
    figure.update_layout(
        layout(340, 44),
        xaxis=axis(say("axis.position", unit=unit), rangemode="tozero"),
        yaxis=axis(say("axis.share"), range=[-0.03, 1.05], tickformat=".0%"),
    )
    return figure


def by_condition(score: Mapping[str, Any], say: Say) -> Figure | None:
    """Mean agreement inside each condition and between each two, with intervals over prompts."""
    rows = condition_rows(score, say)
    if not rows:
        return None
    import plotly.graph_objects as go

    values = [rounded(row["value"]) or 0.0 for row in rows]
    ends = [row["ci95"] or (row["value"], row["value"]) for row in rows]
    figure = go.Figure()
    figure.add_scatter(
        x=values,
        y=[plain(row["name"], 48) for row in rows],
        mode="markers",
        marker={
            "color": BLUE,
            "size": 11,
            "symbol": ["circle" if row["inside"] else "diamond-open" for row in rows],
            "line": {"width": 2, "color": BLUE},
        },
        error_x={
            "type": "data",
            "symmetric": False,
            "thickness": 1.4,
            "width": 6,
            "color": BLUE,
            "array": [rounded(max(0.0, e[1] - v)) for e, v in zip(ends, values, strict=True)],
            "arrayminus": [rounded(max(0.0, v - e[0])) for e, v in zip(ends, values, strict=True)],
        },
        showlegend=False,
        hovertemplate="%{y}: %{x}<extra></extra>",
    )
    lowest = min([*values, *(e[0] for e in ends)])
    figure.update_layout(
        layout(110 + 34 * len(rows)),
        xaxis=axis(say("axis.agreement"), range=_range(lowest)),
        yaxis=axis("", type="category", autorange="reversed"),
    )
    _target_line(figure, score)
    return figure


def before_after(score: Mapping[str, Any], say: Say) -> Figure | None:
    """Each prompt's agreement before and now, joined by a line."""
    rows = (score.get("compare") or {}).get("rows") or []
    if not rows:
        return None
    import plotly.graph_objects as go

    rows = sorted(rows, key=lambda row: row["after"] - row["before"])[:MOST_PROMPTS]
    names = [plain(row["query"], 28) for row in rows]
    figure = go.Figure()
    figure.add_scatter(
        x=[v for row in rows for v in (rounded(row["before"]), rounded(row["after"]), None)],
        y=[name for name in names for _ in range(3)],
        mode="lines",
        line={"color": GREY, "width": 2},
        hoverinfo="skip",
        showlegend=False,
    )
    for place, key in enumerate(("before", "after")):
        colour = (VERMILION, BLUE)[place]
        figure.add_scatter(
            x=[rounded(row[key]) for row in rows],
            y=names,
            mode="markers",
            name=say(f"head.{key}"),
            marker={
                "color": colour,
                "size": 10,
                "symbol": ("diamond-open", "circle")[place],
                "line": {"width": 2, "color": colour},
            },
            hovertemplate="%{y}: %{x}<extra></extra>",
        )
    lowest = min(min(row["before"], row["after"]) for row in rows)
    figure.update_layout(
        layout(90 + 26 * len(rows), 44),
        xaxis=axis(say("axis.agreement"), range=_range(lowest)),
        yaxis=axis("", type="category", autorange="reversed"),
    )
    return figure


def condition_rows(score: Mapping[str, Any], say: Say) -> Sequence[dict[str, Any]]:
    """Inside each condition, then between each two: name, value, interval."""
    out = []
    for row in score["conditions"]:
        figure = next((f for f in row["figures"] if f["name"] == "pairwise agreement"), None)
        if figure is not None:
            out.append({"name": row["condition"], "inside": True, **_number(figure)})
    for row in score["between"]:
        name = say("conditions.pair", a=row["a"], b=row["b"])
        out.append({"name": name, "inside": False, **_number(row)})
    return out


def _number(figure: Mapping[str, Any]) -> dict[str, Any]:
    return {"value": figure["value"], "ci95": figure["ci95"]}
