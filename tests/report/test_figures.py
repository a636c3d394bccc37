"""Figures against values worked out from the tables by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from detdiag.report import figures
from detdiag.report.messages import speaker
from tests.report.samples import sample

SAY = speaker("en")
ALL = (
    figures.margins_scatter,
    figures.divergence_heatmap,
    figures.batch_sweep,
    figures.expert_flips,
    figures.routing_margins,
)


def traces(figure: Any) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = figure.to_plotly_json()["data"]
    return made


def by_name(figure: Any, start: str) -> dict[str, Any]:
    return next(t for t in traces(figure) if str(t.get("name", "")).startswith(start))


@pytest.mark.parametrize("draw", ALL)
def test_nothing_to_draw_is_no_figure(draw: Any) -> None:
    assert draw(sample("minimal"), SAY) is None


def test_margins_fall_into_four_classes() -> None:
    report = sample("minimal")
    report["margins"] = [
        {"query": "q", "position": 0, "margin_logits": 2.0, "noise_logits": 0.5, "flipped": False},
        {"query": "q", "position": 1, "margin_logits": 0.5, "noise_logits": 0.5, "flipped": False},
        {"query": "q", "position": 2, "margin_logits": 0.0, "noise_logits": 0.5, "flipped": True},
        {"query": "q", "position": 3, "margin_logits": 3.0, "noise_logits": 0.5, "flipped": True},
        {"query": "q", "position": 4, "margin_logits": 3.0, "noise_logits": None, "flipped": True},
    ]
    figure = figures.margins_scatter(report, SAY)
    assert by_name(figure, "above the noise")["y"] == [2.0]
    assert by_name(figure, "at risk")["y"] == [0.5]
    assert by_name(figure, "flipped above the noise")["y"] == [3.0]
    flipped = by_name(figure, "flipped (1)")
    assert flipped["y"][0] == pytest.approx(0.5 / 3, rel=1e-3), "zero sits on the rail"
    line = by_name(figure, "margin = noise")
    assert line["x"] == line["y"]
    symbols = {t["marker"]["symbol"] for t in traces(figure) if t["mode"] == "markers"}
    assert len(symbols) == 4, "shape tells the classes apart, not colour alone"


def test_many_safe_points_are_thinned_but_no_flip_is() -> None:
    report = sample("minimal")
    report["margins"] = [
        {
            "query": "q",
            "position": i,
            "margin_logits": 2.0,
            "noise_logits": 0.5,
            "flipped": i % 100 == 0,
        }
        for i in range(10_000)
    ]
    figure = figures.margins_scatter(report, SAY)
    assert len(by_name(figure, "above the noise")["y"]) <= 1500
    assert len(by_name(figure, "flipped above")["y"]) == 100


def test_heatmap_outlines_the_first_divergence() -> None:
    figure = figures.divergence_heatmap(sample("batch-confirmed"), SAY)
    heat = sample("batch-confirmed")["data"]["heatmap"]
    trace = traces(figure)[0]
    assert len(trace["z"]) == len(heat["modules"])
    assert trace["z"][1][3] == heat["log10_rel"][1][3]
    assert trace["z"][0] == [None] * 36
    shape = figure.to_plotly_json()["layout"]["shapes"][0]
    row = heat["modules"].index("model.layers.0.self_attn.q_proj")
    assert (shape["x0"], shape["y0"]) == (heat["first"]["token"] - 0.5, row - 0.5)


def test_a_wide_heatmap_is_windowed_around_the_first_divergence() -> None:
    report = sample("minimal")
    report["data"] = {
        "heatmap": {
            "modules": [f"m{i}" for i in range(300)],
            "log10_rel": [[-1.0] * 5000 for _ in range(300)],
            "first": {"module": "m0", "token": 4000},
        }
    }
    start, stop = figures.heatmap_window(report)
    assert start <= 4000 < stop and (stop - start) * 300 <= 24_000
    assert traces(figures.divergence_heatmap(report, SAY))[0]["x"] == list(range(start, stop))


def test_sweep_shows_every_point_and_pools_flips_by_batch_size() -> None:
    report = sample("minimal")
    row = {"padding_side": "left", "neighbours": "copies", "n": 10}
    report["data"] = {
        "sweep": [
            {
                **row,
                "query": "a",
                "batch_size": 1,
                "bit_equal": True,
                "max_abs_logit": 0.0,
                "flips": 0,
            },
            {
                **row,
                "query": "a",
                "batch_size": 8,
                "bit_equal": False,
                "max_abs_logit": 0.5,
                "flips": 3,
            },
            {
                **row,
                "query": "b",
                "batch_size": 8,
                "bit_equal": False,
                "max_abs_logit": 0.25,
                "flips": 1,
            },
        ]
    }
    figure = figures.batch_sweep(report, SAY)
    points = by_name(figure, "left · copies")
    floor = pytest.approx(0.25 / 3, rel=1e-3)
    assert points["x"] == [1, 8, 8] and points["y"] == [floor, 0.5, 0.25]
    assert points["marker"]["symbol"] == ["circle-open", "circle", "circle"]
    rate = next(t for t in traces(figure) if t.get("error_y"))
    assert rate["x"] == [1, 8] and rate["y"] == [0.0, 4 / 20]
    from scipy.stats import binomtest

    ends = binomtest(4, 20).proportion_ci(method="wilson")
    assert rate["error_y"]["array"][1] == pytest.approx(ends.high - 0.2, rel=1e-3)
    assert rate["error_y"]["arrayminus"][1] == pytest.approx(0.2 - ends.low, rel=1e-3)


def test_expert_flips_and_router_margins() -> None:
    report = sample("moe-router-tie")
    routing = report["data"]["routing"]
    flips = traces(figures.expert_flips(report, SAY))
    assert flips[0]["z"] == routing["changed"]
    assert flips[1]["x"] == [pytest.approx(r, rel=1e-3) for r in routing["flip_rate"]]
    margins = figures.routing_margins(report, SAY)
    changed = [m for m in routing["margins"] if m["changed"]]
    assert len(by_name(margins, "expert changed")["y"]) == len(changed)


@pytest.mark.parametrize("draw", ALL)
def test_figures_are_rounded_and_carry_no_default_template(draw: Any) -> None:
    report = sample(
        "moe-router-tie"
        if "rout" in draw.__name__ or "expert" in draw.__name__
        else "batch-confirmed"
    )
    made = draw(report, SAY).to_plotly_json()
    assert len(repr(made["layout"]["template"])) < 200
    for trace in made["data"]:
        for key in ("x", "y"):
            for value in trace.get(key) or []:
                if isinstance(value, float) and math.isfinite(value):
                    assert float(f"{value:.4g}") == value


@pytest.mark.parametrize("draw", ALL)
def test_hostile_names_are_entities_in_figures(draw: Any) -> None:
    figure = draw(sample("hostile"), SAY)
    shown = repr([[t.get("text"), t.get("name")] for t in traces(figure)])
    ticks = repr(figure.to_plotly_json()["layout"].get("yaxis"))
    for text in (shown, ticks):
        assert "<script" not in text and "<img" not in text and "\u202e" not in text
