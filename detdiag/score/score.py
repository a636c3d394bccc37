"""The score: figures over prompts with intervals, the bound, and what the number does not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from detdiag import __version__
from detdiag.score import forks
from detdiag.score.aggregate import FIGURES, figure_over, listed, mean_of, unit_of, values_of
from detdiag.score.answers import Parser
from detdiag.score.figures import Measured, PromptFigures, figures_of
from detdiag.score.gate import Question, decide
from detdiag.score.limits import limits_of, run_limits
from detdiag.score.resample import clopper_pearson_lower
from detdiag.score.sample import Sample
from detdiag.score.units import units_of
from detdiag.verdict.stats import wilson

SCHEMA: Final = "detdiag.score/1"
ALL: Final = "all"
"""Name of the view in which a run falls under any of the conditions with equal chance."""


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
    agreement = mean_of(views[ALL], "agreement")
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
            "unit": unit_of(views[ALL]),
            "curves": [_curve(name, rows) for name, rows in views.items()],
        },
        "outputs": [pair for row in views[ALL] if (pair := _outputs(row, sample))][:12],
        "cache": dict(sample.cached),
        "left_out": dict(sample.left_out),
        "limits": [
            *limits_of(sample, views[ALL], units, gate, question),
            *run_limits(method or {}),
        ],
    }


def _views(sample: Sample, parser: Parser | None, seed: int) -> dict[str, list[PromptFigures]]:
    """Figures of every prompt: over all conditions, and under each."""
    cells = sample.cells()
    views: dict[str, list[PromptFigures]] = {ALL: [], **{c: [] for c in sample.conditions}}
    for query in sample.queries:
        measured = Measured()
        found = {c: cells[query, c] for c in sample.conditions if (query, c) in cells}
        every = figures_of(query, list(found.values()), parser, measured, seed)
        views[ALL].append(every)
        for name, runs in found.items():
            alone = len(found) == 1
            one = every if alone else figures_of(query, [runs], parser, measured, seed)
            views[name].append(one)
    return views


def _condition(name: str, rows: Sequence[PromptFigures], seed: int) -> dict[str, Any]:
    return {
        "condition": name,
        "prompts": len(rows),
        "runs": sum(row.runs for row in rows),
        "figures": [figure for key in FIGURES if (figure := FIGURES[key](rows, seed))],
        "inside_burst": figure_over("agreement inside a burst", values_of(rows, "inside"), seed),
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
            made = figure_over("agreement", values, seed)
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
            "ci95": listed(wilson(row.modal, row.runs)) if independent else None,
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
