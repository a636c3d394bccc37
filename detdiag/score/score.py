"""The score: figures over prompts with intervals, the bound, and what the number does not say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detdiag import __version__
from detdiag.score import bound, forks
from detdiag.score.answers import Parser
from detdiag.score.figures import FEW, Measured, PromptFigures, figures_of
from detdiag.score.resample import bootstrap_mean, bootstrap_ratio, clopper_pearson_lower
from detdiag.score.sample import Sample
from detdiag.score.units import Units, units_of, units_per_cycle
from detdiag.verdict.stats import wilson

SCHEMA: Final = "detdiag.score/1"
ALL: Final = "all"
"""Name of the view in which a run falls under any of the conditions with equal chance."""
CONFIDENCE: Final = 0.95
FEW_PROMPTS: Final = 8
"""Below this many prompts a percentile interval over prompts is too narrow to trust."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the score: a target for pairwise agreement, or none."""

    target: float | None = None
    confidence: float = CONFIDENCE

    @property
    def alpha(self) -> float:
        return 1.0 - self.confidence


def score(
    sample: Sample,
    question: Question,
    *,
    parser: Parser | None = None,
    answer: str = "",
    target: Mapping[str, Any] | None = None,
    method: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """The score object (``detdiag.score/1``), plain data for every renderer."""
    views = _views(sample, parser, seed)
    units = units_of(sample)
    gate = decide(sample, units, question)
    agreement = _mean(views[ALL], "agreement")
    if agreement is None and gate["reason"] != "cache":
        gate |= {"status": "undecided", "reason": "nothing"}
    return {
        "schema": SCHEMA,
        "tool": {"name": "detdiag", "version": __version__},
        "target": dict(target or {}),
        "method": {**(method or {}), "answer": answer, "seed": seed},
        "summary": {**gate, "agreement": agreement},
        "figures": [figure for name in FIGURES if (figure := FIGURES[name](views[ALL], seed))],
        "conditions": [_condition(name, views[name], seed) for name in sample.conditions],
        "between": _between(sample, seed),
        "prompts": [_prompt(row, sample, views) for row in views[ALL]],
        "survival": {
            "unit": _unit(views[ALL]),
            "curves": [_curve(name, rows) for name, rows in views.items()],
        },
        "outputs": [pair for row in views[ALL] if (pair := _outputs(row, sample))][:12],
        "cache": dict(sample.cached),
        "left_out": dict(sample.left_out),
        "limits": [
            *_limits(sample, views[ALL], units, gate, question),
            *_run_limits(method or {}),
        ],
    }


def _views(sample: Sample, parser: Parser | None, seed: int) -> dict[str, list[PromptFigures]]:
    """Figures of every prompt: over all conditions, and under each."""
    cells = sample.cells()
    views: dict[str, list[PromptFigures]] = {ALL: [], **{c: [] for c in sample.conditions}}
    for query in sample.queries:
        measured = Measured()
        found = {c: cells[query, c] for c in sample.conditions if (query, c) in cells}
        views[ALL].append(figures_of(query, list(found.values()), parser, measured, seed))
        for name, runs in found.items():
            views[name].append(figures_of(query, [runs], parser, measured, seed))
    return views


def decide(sample: Sample, units: Units, question: Question) -> dict[str, Any]:
    """Bounds of the agreement and, with a target, whether it is reached, missed or open."""
    low = bound.lower(units.tally, question.alpha)
    high = bound.upper(units.tally, question.alpha)
    status = "measured"
    if question.target is not None:
        status = "undecided"
        if low >= question.target:
            status = "reached"
        elif high < question.target:
            status = "missed"
    reason = "" if units.values else "unbounded"
    if sample.cached:
        status, reason = "undecided", "cache"
    return {
        "status": status,
        "reason": reason,
        "target": question.target,
        "bound": {
            "lower": low if units.values else None,
            "upper": high if units.values else None,
            "confidence": question.confidence,
            "units": len(units.values),
            "disagree": units.disagree,
            "prompts": units.prompts,
            "merged": units.merged,
            "skipped": list(units.skipped),
        },
    }


def _values(rows: Sequence[PromptFigures], name: str) -> list[float]:
    return [v for row in rows if (v := getattr(row, name)) is not None]


def _mean(rows: Sequence[PromptFigures], name: str) -> float | None:
    values = _values(rows, name)
    return sum(values) / len(values) if values else None


def _figure(name: str, values: Sequence[float], seed: int, **extra: Any) -> dict[str, Any] | None:
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


def _mean_of(name: str, field: str) -> Figure:
    return lambda rows, seed: _figure(name, _values(rows, field), seed)


def _total_agreement(name: str, field: str, n: Callable[[Sequence[PromptFigures]], int]) -> Figure:
    """TARr@N or TARa@N: the share of prompts whose N runs all agree, with a Wilson interval."""

    def make(rows: Sequence[PromptFigures], seed: int) -> dict[str, Any] | None:
        values = _values(rows, field)
        if not values:
            return None
        made = _figure(f"{name}@{n(rows)}", values, seed)
        hits = round(sum(values))
        if made and abs(sum(values) - hits) < 1e-9:
            made |= {"k": hits, "n": len(values), "ci95": _listed(wilson(hits, len(values)))}
        return made

    return make


def _listed(ends: tuple[float, float] | None) -> list[float] | None:
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
        "unit": f"per_1000_{_unit(rows)}",
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
        "unit": _unit(rows),
    }


def _distinct(rows: Sequence[PromptFigures], seed: int) -> dict[str, Any] | None:
    return _figure("distinct outputs", [float(len(row.counts)) for row in rows], seed)


def _modal(rows: Sequence[PromptFigures], seed: int) -> dict[str, Any] | None:
    return _figure("modal share", [row.modal / row.runs for row in rows if row.runs], seed)


FIGURES: Final[dict[str, Figure]] = {
    "agreement": _mean_of("pairwise agreement", "agreement"),
    "answers": _mean_of("pairwise agreement of answers", "answer_agreement"),
    "tarr": _total_agreement("TARr", "all_equal", _runs),
    "tarr_few": _total_agreement("TARr", "all_equal_few", lambda rows: FEW),
    "tara": _total_agreement("TARa", "answer_all_equal", _runs),
    "distinct": _distinct,
    "modal": _modal,
    "edit": _mean_of("edit similarity", "edit"),
    "bleu": _mean_of("BLEU", "bleu"),
    "chrf": _mean_of("chrF", "chrf"),
    "first_fork": _first_fork,
    "hazard": _hazard,
    "digest_first": _mean_of("digest agreement, first token", "digest_first"),
    "digest": _mean_of("digest agreement, to the first fork", "digest"),
}


def _unit(rows: Sequence[PromptFigures]) -> str:
    return "characters" if any(row.unit == "characters" for row in rows) else "tokens"


def _condition(name: str, rows: Sequence[PromptFigures], seed: int) -> dict[str, Any]:
    return {
        "condition": name,
        "prompts": len(rows),
        "runs": sum(row.runs for row in rows),
        "figures": [figure for key in FIGURES if (figure := FIGURES[key](rows, seed))],
        "inside_burst": _figure("agreement inside a burst", _values(rows, "inside"), seed),
    }


def _between(sample: Sample, seed: int) -> list[dict[str, Any]]:
    """Agreement of one run of each of two conditions."""
    from detdiag.score.pairs import cell_of, cross

    cells = sample.cells()
    out = []
    for i, a in enumerate(sample.conditions):
        for b in sample.conditions[i + 1 :]:
            values = []
            for query in sample.queries:
                pair = [cells.get((query, c), []) for c in (a, b)]
                found = [cell_of((r.output, r.burst) for r in runs) for runs in pair]
                value = cross(*found)
                if value is not None:
                    values.append(value)
            made = _figure("agreement", values, seed)
            if made:
                out.append({"a": a, "b": b, **made})
    return out


def _prompt(
    row: PromptFigures, sample: Sample, views: Mapping[str, Sequence[PromptFigures]]
) -> dict[str, Any]:
    independent = row.bursts == row.runs
    by_condition = {
        c: found.agreement
        for c in sample.conditions
        for found in views[c]
        if found.query == row.query
    }
    return {
        "query": row.query,
        "runs": row.runs,
        "distinct": len(row.counts),
        "agreement": row.agreement,
        "by_condition": by_condition,
        "modal": {
            "k": row.modal,
            "n": row.runs,
            "ci95": _listed(wilson(row.modal, row.runs)) if independent else None,
            "lower95": clopper_pearson_lower(row.modal, row.runs) if independent else None,
        },
        "answers": row.answers,
        "unparsed": row.unparsed,
        "answer_agreement": row.answer_agreement,
        "edit": row.edit,
        "bleu": row.bleu,
        "chrf": row.chrf,
        "first_fork": forks.first_fork(row.meetings),
        "median_fork": forks.median_fork(row.meetings),
        "fork_unit": row.unit,
        "digest": row.digest,
        "digest_channel": row.channel,
        "digested": row.digested,
    }


def _curve(name: str, rows: Sequence[PromptFigures]) -> dict[str, Any]:
    """Survival of the common prefix over all prompts of a view (prompts weigh the same)."""
    places, shares = forks.survival([m for row in rows for m in row.meetings])
    return {"condition": name, "t": places, "share": shares}


def _outputs(row: PromptFigures, sample: Sample) -> dict[str, Any] | None:
    """The two commonest outputs of a prompt that has two, with how often each came."""
    from detdiag.score.forks import common_prefix

    ranked = sorted(row.counts.items(), key=lambda item: -item[1])[:2]
    if len(ranked) < 2:
        return None
    sides: list[dict[str, Any]] = []
    for output, count in ranked:
        seen = [r for r in sample.runs if r.query == row.query and r.output == output]
        where = sorted({run.condition for run in seen})
        text = next((run.text for run in seen if run.text is not None), None)
        sides.append({"count": count, "conditions": where, "text": text})
    a, b = sides[0]["text"], sides[1]["text"]
    place = None if a is None or b is None else common_prefix(a, b)
    return {"query": row.query, "runs": row.runs, "a": sides[0], "b": sides[1], "fork": place}


def _limits(
    sample: Sample,
    rows: Sequence[PromptFigures],
    units: Units,
    gate: Mapping[str, Any],
    question: Question,
) -> list[dict[str, Any]]:
    """What the number does not say, as message keys with their values."""
    out: list[dict[str, Any]] = []
    if sample.cached:
        out.append({"key": "limit.cache_seen", "n": sum(sample.cached.values())})
    else:
        out.append({"key": "limit.cache"})
    tenth = _tenth(rows, units, gate, question)
    if tenth:
        out.append(tenth)
    if len(rows) == 1:
        out.append({"key": "limit.one_prompt"})
    elif len(rows) < FEW_PROMPTS:
        out.append({"key": "limit.few_prompts", "n": len(rows)})
    if units.merged:
        out.append({"key": "limit.bursts"})
    if units.skipped:
        out.append({"key": "limit.skipped", "n": len(units.skipped), "all": len(rows)})
    digest = _mean(rows, "digest")
    if digest is not None and digest < (_mean(rows, "agreement") or 0.0):
        out.append({"key": "limit.digests_moved", "moved": 1.0 - digest})
    if any(row.digested and row.digested < row.runs for row in rows):
        out.append({"key": "limit.some_digests"})
    if not any(row.digested for row in rows):
        out.append({"key": "limit.no_digests"})
    if any(row.unparsed for row in rows):
        out.append({"key": "limit.unparsed", "n": sum(row.unparsed or 0 for row in rows)})
    return out


def _run_limits(method: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What went wrong while the runs were made."""
    out: list[dict[str, Any]] = []
    load, failed = method.get("load"), method.get("failed")
    if isinstance(load, Mapping) and load["witnessed"] < load["bursts"]:
        out.append({"key": "limit.unwitnessed", **load})
    if isinstance(failed, Mapping):
        out.append({"key": "limit.failed", "n": failed["n"]})
    return out


def _tenth(
    rows: Sequence[PromptFigures],
    units: Units,
    gate: Mapping[str, Any],
    question: Question,
) -> dict[str, Any] | None:
    """Runs needed to show a flip rate of a tenth of what is seen (or of what is still allowed)."""
    seen = _mean(rows, "agreement")
    if not units.values or seen is None:
        return None
    flips = 1.0 - seen if seen < 1.0 else 1.0 - gate["bound"]["lower"]
    need = bound.units_for(1.0 - flips / 10, question.alpha)
    return {
        "key": "limit.tenth_seen" if seen < 1.0 else "limit.tenth_allowed",
        "flips": flips,
        "tenth": flips / 10,
        "pairs": need,
        "runs": runs_for_units(need, units.prompts, units.conditions, units.merged),
        "confidence": question.confidence,
    }


def runs_for_units(units: int, prompts: int, conditions: int, merged: bool) -> int:
    """Runs of each prompt under each condition that make at least ``units`` comparisons."""
    return 2 * conditions * math.ceil(units / units_per_cycle(max(prompts, 1), conditions, merged))
