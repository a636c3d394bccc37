"""First divergence: modules in depth order by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from detdiag.report import model
from detdiag.report.figures.style import (
    SCALE,
    VERMILION,
    axis,
    layout,
    plain,
    token_ticks,
)
from detdiag.report.messages import Say
from detdiag.report.numbers import rounded
from detdiag.report.safe import finite

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_CELLS: Final = 24_000


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
    heat = model.mapping(model.data(report).get("heatmap"))
    modules = [str(m) for m in heat.get("modules") or []]
    grid = [list(line) for line in heat.get("log10_rel") or [] if isinstance(line, (list, tuple))]
    if not modules or not grid:
        return None
    import plotly.graph_objects as go

    start, stop = heatmap_window(report)
    names = _short_modules(modules)
    tokens = list(heat.get("tokens") or [])
    columns = list(range(start, stop))
    figure = go.Figure(
        layout=layout(
            min(1400, max(260, 110 + 15 * len(modules))),
            xaxis=axis(say("heatmap.x"), showgrid=False, **token_ticks(tokens, columns)),
            yaxis=axis(
                "",
                autorange="reversed",
                showgrid=False,
                tickmode="array",
                tickvals=list(range(len(names))),
                ticktext=names,
            ),
        )
    )
    figure.add_heatmap(
        x=columns,
        y=list(range(len(names))),
        z=[[rounded(v, 3) for v in line[start:stop]] for line in grid],
        colorscale=SCALE,
        hoverongaps=False,
        xgap=1 if len(columns) <= 80 else 0,
        ygap=1,
        colorbar={
            "title": {"text": say("heatmap.colour"), "side": "right", "font": {"size": 12}},
            "thickness": 12,
            "len": 0.9,
        },
        hovertemplate="#%{x} · %{y}: %{z}<extra></extra>",
    )
    first = model.mapping(heat.get("first"))
    column = finite(first.get("token"))
    row = model.listed_module(first.get("module"), modules)
    if row is not None and column is not None and start <= column < stop:
        _outline(figure, int(column), row, say("heatmap.first_mark"))
    return figure


def _outline(figure: Figure, column: int, row: int, label: str) -> None:
    figure.add_shape(
        type="rect",
        x0=column - 0.5,
        x1=column + 0.5,
        y0=row - 0.5,
        y1=row + 0.5,
        line={"color": VERMILION, "width": 3},
    )
    figure.add_annotation(
        x=column,
        y=row,
        text=label,
        showarrow=True,
        arrowhead=2,
        ax=46,
        ay=-24,
        arrowcolor=VERMILION,
        font={"size": 12},
    )


def _short_modules(modules: Sequence[str]) -> list[str]:
    """Module paths without the leading components that all of them share."""
    split = [m.split(".") for m in modules]
    same = 0
    while all(len(parts) > same + 1 for parts in split) and len({p[same] for p in split}) == 1:
        same += 1
    return [plain(".".join(parts[same:]), 44) for parts in split]
