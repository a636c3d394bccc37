"""The figure sections: a question, the finding in words, the figure and its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from detdiag.report import figures, model, tables
from detdiag.report.messages import Say
from detdiag.report.views.findings import (
    heatmap_finding,
    margins_finding,
    operators_finding,
    router_margins_finding,
    routing_finding,
    sweep_finding,
)


@dataclass(frozen=True, slots=True)
class FigureView:
    """One figure section: a question, the finding in words, the figure's spec and its tables."""

    id: str
    title: str
    finding: str
    empty: str
    spec: Mapping[str, Any] | None
    tables: tuple[tables.Table, ...]
    wide: bool = False
    note: str = ""
    drawn: bool = field(default=False)

    @property
    def shown(self) -> bool:
        return self.drawn or any(self.tables)


Draw = Callable[[model.Report, Say], Any]


def figure_views(report: model.Report, say: Say, draw: bool) -> list[FigureView]:
    """The figures of the page in reading order; without ``draw`` only their tables."""
    routing_state = next(
        (
            model.layer_state(r)
            for r in model.layers_in_walk_order(report)
            if r.get("layer") == "moe"
        ),
        "",
    )
    no_router = say(
        "routing.not_applicable" if routing_state == "not_applicable" else "routing.empty"
    )
    start, stop = figures.heatmap_window(report)
    made: list[tuple[str, Draw | None, list[tables.Table], str, str, bool]] = [
        (
            "margins",
            figures.margins_scatter,
            [tables.margins_table(report, say)],
            margins_finding(report, say),
            say("margins.empty"),
            False,
        ),
        (
            "heatmap",
            figures.divergence_heatmap,
            [tables.heatmap_table(report, say)],
            heatmap_finding(report, say),
            say("heatmap.empty"),
            True,
        ),
        (
            "operators",
            None,
            [tables.operators_table(report, say), tables.toggles_table(report, say)],
            operators_finding(report, say),
            say("operators.empty"),
            False,
        ),
        (
            "sweep",
            figures.batch_sweep,
            [tables.sweep_table(report, say)],
            sweep_finding(report, say),
            say("sweep.empty"),
            False,
        ),
        (
            "routing",
            figures.expert_flips,
            [tables.routing_table(report, say)],
            routing_finding(report, say),
            no_router,
            True,
        ),
        (
            "router_margins",
            figures.routing_margins,
            [tables.router_margins_table(report, say)],
            router_margins_finding(report, say),
            no_router,
            False,
        ),
    ]
    out: list[FigureView] = []
    for id_, function, found, finding, empty, wide in made:
        figure = function(report, say) if draw and function else None
        width = max(
            (
                len(r)
                for r in (model.mapping(model.data(report).get("heatmap")).get("log10_rel") or [])
            ),
            default=0,
        )
        cut = id_ == "heatmap" and stop - start < width
        if id_ == "router_margins" and not any(found):
            continue
        out.append(
            FigureView(
                id=id_.replace("_", "-"),
                title=say(f"{id_}.title"),
                finding=finding,
                empty=empty,
                spec=None if figure is None else _spec(f"{id_.replace('_', '-')}-plot", figure),
                tables=tuple(t for t in found if t),
                wide=wide,
                note=say("heatmap.window", start=start, stop=stop, all=width)
                if cut and draw
                else "",
                drawn=figure is not None,
            )
        )
    return out


def _spec(div_id: str, figure: Any) -> dict[str, Any]:
    made = figure.to_plotly_json()
    return {"id": div_id, "data": made["data"], "layout": made["layout"]}
