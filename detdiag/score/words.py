"""The score in sentences, from its own message catalogue and the report's."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from detdiag.report import messages
from detdiag.report.messages import Say
from detdiag.report.numbers import number


@lru_cache(maxsize=1)
def catalogue() -> dict[str, dict[str, str]]:
    """``{key: {lang: text}}`` of the score's own texts."""
    raw: dict[str, dict[str, str]] = json.loads(
        Path(__file__).with_name("messages.json").read_text("utf-8")
    )
    return raw


def speaker(lang: str) -> Say:
    """Looks a key up here first, then in the report's catalogue."""
    fallback = messages.speaker(lang)
    own = catalogue()

    def say(key: str, /, **fields: Any) -> str:
        if key not in own:
            return fallback(key, **fields)
        text = own[key][lang]
        return text.format(**fields) if fields else text

    return say


def share(value: float | None) -> str:
    """An agreement with four decimals; 1 only if it is exactly 1, and never rounded up to it."""
    if value is None:
        return "–"
    return "1" if value == 1.0 else f"{min(value, 0.9999):.4f}"


def low(value: float | None) -> str:
    """A lower bound, rounded down."""
    return "–" if value is None else f"{math.floor(value * 1e4) / 1e4:.4f}"


def high(value: float | None) -> str:
    """An upper bound, rounded up."""
    return "–" if value is None else f"{min(1.0, math.ceil(value * 1e4) / 1e4):.4f}"


def sentence(score: Mapping[str, Any], say: Say) -> str:
    """The whole result in one or two sentences."""
    summary = score["summary"]
    bound = summary["bound"]
    key = summary["reason"] or summary["status"]
    return say(
        f"sentence.{key}",
        lower=low(bound["lower"]),
        upper=high(bound["upper"]),
        confidence=f"{bound['confidence']:g}",
        target="–" if summary["target"] is None else f"{summary['target']:g}",
        agreement=share(summary["agreement"]),
        prompts=len(score["prompts"]),
        runs=runs(score),
        cached=sum(score["cache"].values()),
    )


def runs(score: Mapping[str, Any]) -> int:
    """Runs that were compared."""
    return sum(row["runs"] for row in score["prompts"])


def bound_text(score: Mapping[str, Any], say: Say) -> str:
    """The bound with what it rests on; empty where nothing could be compared."""
    bound = score["summary"]["bound"]
    if bound["lower"] is None:
        return ""
    return say(
        "row.bound_text",
        lower=low(bound["lower"]),
        upper=high(bound["upper"]),
        confidence=f"{bound['confidence']:g}",
        disagree=bound["disagree"],
        units=bound["units"],
    )


def limits(score: Mapping[str, Any], say: Say) -> list[str]:
    """What the number does not say, one sentence each."""
    return [*(_limit(limit, say) for limit in score["limits"]), say("limit.scope")]


_RATES: Final = frozenset({"flips", "tenth", "moved"})


def _limit(limit: Mapping[str, Any], say: Say) -> str:
    fields = {k: _field(k, v) for k, v in limit.items() if k not in ("key", "text")}
    return say(limit["key"], **fields)


def _field(name: str, value: Any) -> str:
    if name in _RATES:
        return f"{number(100 * value, 3)} %"
    return number(value, 3) if isinstance(value, float) else str(value)


def figure_name(name: str, say: Say) -> str:
    """A figure's name in the report's language (``TARr@200`` is the same in all)."""
    return say(f"figure.{name}") if f"figure.{name}" in catalogue() else name


def figure_value(figure: Mapping[str, Any]) -> str:
    """The value as people read it: counts for prompts, four decimals for shares."""
    value = figure["value"]
    if figure["name"] == "first fork":
        return str(value)
    if figure["name"] in ("distinct outputs", "fork hazard"):
        return number(value, 4)
    shown = share(value)
    return f"{shown} ({figure['k']}/{figure['n']})" if "k" in figure else shown


def figure_interval(figure: Mapping[str, Any]) -> str:
    ends = figure["ci95"]
    if ends is None:
        return "–"
    if figure["name"] in ("distinct outputs", "fork hazard"):
        return f"{number(ends[0], 3)} – {number(ends[1], 3)}"
    return f"{share(ends[0])} – {share(ends[1])}"


def named(figures: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The figure of that name, or one that starts with it and ``@``."""
    for figure in figures:
        if figure["name"] == name or figure["name"].startswith(f"{name}@"):
            return figure
    return None


def with_words(score: dict[str, Any]) -> dict[str, Any]:
    """The score with its English sentences in it, for the JSON that people read."""
    say = speaker("en")
    score["summary"]["sentence"] = sentence(score, say)
    for limit in score["limits"]:
        limit["text"] = _limit(limit, say)
    return score
