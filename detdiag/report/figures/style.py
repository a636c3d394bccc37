"""What all figures share: axes, colours, marks. Text and grid colours come from the page's style
sheet, so that figures follow dark mode and print; mark colours keep 3:1 on both grounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from detdiag.report.numbers import rounded
from detdiag.report.safe import one_line

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

GREY: Final = "#767676"
BLUE: Final = "#0072B2"
VERMILION: Final = "#D55E00"
GREEN: Final = "#009E73"
PURPLE: Final = "#AA5C9F"
SCALE: Final = [[0, "#4b6fb0"], [0.35, "#2a9d9a"], [0.7, "#74bf55"], [1, "#e3b505"]]
"""Sequential, of viridis type, cut so that its dark end still shows on a dark page."""
FLIP_SCALE: Final = [[0, "rgba(128,128,128,0.14)"], [0.01, "#e0924f"], [1, "#b34700"]]
SERIES: Final = (BLUE, VERMILION, GREEN, PURPLE, GREY)
SYMBOLS: Final = ("circle", "diamond", "square", "triangle-up", "x")
MAX_SAFE_POINTS: Final = 1500
MAX_TICK_TOKENS: Final = 40


def layout(height: int, top: int = 16, **extra: Any) -> dict[str, Any]:
    return {
        "template": "none",
        "height": height,
        "margin": {"l": 64, "r": 20, "t": top, "b": 56},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1,
            "yref": "container",
            "xanchor": "left",
            "yanchor": "top",
            "font": {"size": 12},
        },
        "dragmode": False,
        "hovermode": "closest",
        **extra,
    }


def axis(title: str, **extra: Any) -> dict[str, Any]:
    return {
        "title": {"text": title, "standoff": 8, "font": {"size": 13}},
        "tickfont": {"size": 12},
        "automargin": True,
        "fixedrange": True,
        "zeroline": False,
        "gridcolor": "rgba(128,128,128,0.25)",
        **extra,
    }


def log_axis(title: str, **extra: Any) -> dict[str, Any]:
    return axis(title, type="log", tickformat="~g", nticks=7, **extra)


def plain(text: Any, limit: int = 60) -> str:
    """Text for hover labels and ticks: hidden characters spelled, no markup.

    Plotly reads a small HTML subset in text; ``<`` as an entity is shown as it is.
    """
    shown = one_line(text, limit)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def floor_of(values: Sequence[float]) -> float:
    """Where a logarithmic axis shows zero: half a decade below the smallest positive value."""
    positive = [v for v in values if v > 0]
    return rounded(min(positive) / 3) or 1e-6 if positive else 1e-6


def rail(figure: Figure, at: float, label: str) -> None:
    """A labelled dotted line for values that a logarithmic axis cannot hold (zero)."""
    line = {"color": GREY, "width": 1, "dash": "dot"}
    figure.add_shape(type="line", xref="x domain", x0=0, x1=1, yref="y", y0=at, y1=at, line=line)
    figure.add_annotation(
        x=1,
        xref="x domain",
        y=_log10(at),
        yref="y",
        yshift=10,
        xanchor="right",
        showarrow=False,
        text=label,
        font={"size": 12},
    )


def _log10(value: float) -> float:
    """A position on a logarithmic axis: annotations take the exponent."""
    import math

    return round(math.log10(value), 6)


def token_ticks(tokens: Sequence[Any], columns: Sequence[int]) -> dict[str, Any]:
    if not tokens or len(columns) > MAX_TICK_TOKENS:
        return {"tickformat": "d"}
    shown = [c for c in columns if c < len(tokens)]
    return {
        "tickmode": "array",
        "tickvals": shown,
        "ticktext": [plain(tokens[c], 12) for c in shown],
        "tickangle": -60,
    }
