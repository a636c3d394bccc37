"""Figures over prompts, each with its interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from detdiag.score import forks
from detdiag.score.figures import FEW, PromptFigures
from detdiag.score.resample import bootstrap_mean, bootstrap_ratio
from detdiag.verdict.stats import wilson


def values_of(rows: Sequence[PromptFigures], name: str) -> list[float]:
    return [v for row in rows if (v := getattr(row, name)) is not None]


def mean_of(rows: Sequence[PromptFigures], name: str) -> float | None:
    values = values_of(rows, name)
    return sum(values) / len(values) if values else None


def figure_over(
    name: str, values: Sequence[float], seed: int, **extra: Any
) -> dict[str, Any] | None:
    if not values:
        return None
    ends = bootstrap_mean(values, seed)
    return {
        "name": name,
        "value": sum(values) / len(values),
        "ci95": None if ends is None else list(ends),
        "prompts": len(values),
        **extra,
    }


Figure = Callable[[Sequence[PromptFigures], int], dict[str, Any] | None]


def _mean_figure(name: str, field: str) -> Figure:
    return lambda rows, seed: figure_over(name, values_of(rows, field), seed)


def _total_agreement(name: str, field: str, n: Callable[[Sequence[PromptFigures]], int]) -> Figure:
    """TARr@N or TARa@N: the share of prompts whose N runs all agree, with a Wilson interval."""

    def make(rows: Sequence[PromptFigures], seed: int) -> dict[str, Any] | None:
        values = values_of(rows, field)
        if not values:
            return None
        made = figure_over(f"{name}@{n(rows)}", values, seed)
        hits = round(sum(values))
        if made and abs(sum(values) - hits) < 1e-9:
            made |= {"k": hits, "n": len(values), "ci95": listed(wilson(hits, len(values)))}
        return made

    return make


def listed(ends: tuple[float, float] | None) -> list[float] | None:
    return None if ends is None else list(ends)


def _runs(rows: Sequence[PromptFigures]) -> int:
    return min((row.runs for row in rows), default=0)


def _hazard(rows: Sequence[PromptFigures], seed: int) -> dict[str, Any] | None:
    """Forks per thousand positions compared, over all prompts."""
    parts = [row.hazard for row in rows if row.meetings]
    compared = sum(bottom for _, bottom in parts)
    if not compared:
        return None
    ends = bootstrap_ratio([t for t, _ in parts], [b for _, b in parts], seed)
    return {
        "name": "fork hazard",
        "value": 1000 * sum(top for top, _ in parts) / compared,
        "ci95": None if ends is None else [1000 * ends[0], 1000 * ends[1]],
        "prompts": len(parts),
        "unit": f"per_1000_{unit_of(rows)}",
    }


def _first_fork(rows: Sequence[PromptFigures], seed: int) -> dict[str, Any] | None:
    places = [p for row in rows if (p := forks.first_fork(row.meetings)) is not None]
    if not places:
        return None
    return {
        "name": "first fork",
        "value": min(places),
        "ci95": None,
        "prompts": len(places),
        "unit": unit_of(rows),
    }


def _distinct(rows: Sequence[PromptFigures], seed: int) -> dict[str, Any] | None:
    return figure_over("distinct outputs", [float(len(row.counts)) for row in rows], seed)


def _modal(rows: Sequence[PromptFigures], seed: int) -> dict[str, Any] | None:
    return figure_over("modal share", [row.modal / row.runs for row in rows if row.runs], seed)


FIGURES: Final[dict[str, Figure]] = {
    "agreement": _mean_figure("pairwise agreement", "agreement"),
    "answers": _mean_figure("pairwise agreement of answers", "answer_agreement"),
    "tarr": _total_agreement("TARr", "all_equal", _runs),
    "tarr_few": _total_agreement("TARr", "all_equal_few", lambda rows: FEW),
    "tara": _total_agreement("TARa", "answer_all_equal", _runs),
    "distinct": _distinct,
    "modal": _modal,
    "edit": _mean_figure("edit similarity", "edit"),
    "bleu": _mean_figure("BLEU", "bleu"),
    "chrf": _mean_figure("chrF", "chrf"),
    "first_fork": _first_fork,
    "hazard": _hazard,
    "digest_first": _mean_figure("digest agreement, first token", "digest_first"),
    "digest": _mean_figure("digest agreement, to the first fork", "digest"),
}


def unit_of(rows: Sequence[PromptFigures]) -> str:
    return "characters" if any(row.unit == "characters" for row in rows) else "tokens"
