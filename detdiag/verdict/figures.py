"""Tables that the verdict itself adds for the report: ladder, contrasts, controls, outputs."""

from __future__ import annotations

from typing import Any, Final

from detdiag.evidence.case import Case
from detdiag.layers import LAYERS
from detdiag.verdict.attribution import Attribution
from detdiag.verdict.outcome import compare
from detdiag.verdict.stats import wilson

_STEPS: Final = {
    "config": "config fixed",
    "input": "input pinned",
    "batch": "batch pinned",
    "operator": "operators pinned",
    "decode": "decoding pinned",
    "moe": "routing pinned",
    "version": "one version",
}
MAX_ROWS: Final = 60


def figure_tables(case: Case, found: Attribution, status: str) -> dict[str, Any]:
    """Named tables; ``case.series`` may override them with what a probe measured itself."""
    from detdiag.moe.recorded import routing_series

    routing = routing_series(case.observations)
    return {
        **({} if routing is None else {"routing": routing}),
        "ladder": ladder(found),
        "contrasts": [_contrast_row(c) for c in found.analysis.contrasts],
        "controls": [
            {"condition": dict(c.condition), "k": c.k, "n": c.n, "ci95": _listed(c.k, c.n)}
            for c in found.analysis.controls[:MAX_ROWS]
        ],
        "outputs": outputs(found) if status != "clean" else [],
    }


def _listed(k: int, n: int) -> list[float] | None:
    bounds = wilson(k, n)
    return None if bounds is None else list(bounds)


def _contrast_row(contrast: Any) -> dict[str, Any]:
    return {
        "factor": contrast.bundle.label,
        "layer": contrast.bundle.layer,
        "k": contrast.k,
        "n": contrast.n,
        "ci95": _listed(contrast.k, contrast.n),
        "arms": list(contrast.arms[:12]),
        "control_k": contrast.control_k,
        "control_n": contrast.control_n,
        "mode": contrast.mode,
        "p_holm": float(f"{contrast.p_holm:.4g}"),
        "divergence": contrast.kind,
    }


def ladder(found: Attribution) -> list[dict[str, Any]]:
    """How many pairs of observations of one query still differ once each layer's conditions are
    held equal, in the order of the walk. A rung is tested if a bundle of its layer varied."""
    table, level = found.analysis.table, found.analysis.level
    rows = table.frame[table.frame[level] >= 0]
    steps = [
        _rung(
            "as-is", None, rows.groupby(["query", f"{level}_channels"], sort=False), level, True, ""
        )
    ]
    held: list[str] = []
    for layer in LAYERS:
        mine = [b.column for b in table.bundles if b.layer == layer]
        held += mine
        groups = rows.groupby(["query", f"{level}_channels", *held], sort=False)
        note = "" if mine else "not varied in these observations"
        steps.append(_rung(_STEPS[layer], layer, groups, level, bool(mine), note))
    return steps


def _rung(
    step: str, layer: str | None, groups: Any, level: str, tested: bool, note: str
) -> dict[str, Any]:
    k = n = 0
    for _, rows in groups:
        pairs = len(rows) * (len(rows) - 1) // 2
        equal = sum(int(c) * (int(c) - 1) // 2 for c in rows[level].value_counts())
        k, n = k + pairs - equal, n + pairs
    out: dict[str, Any] = {"step": step, "layer": layer, "tested": tested, "note": note}
    if not tested:
        return {**out, "k": None, "n": None, "ci95": None}
    return {**out, "k": k, "n": n, "ci95": _listed(k, n)}


def outputs(found: Attribution) -> list[dict[str, Any]]:
    """For up to five queries, two answers that differ, each with its conditions."""
    table = found.analysis.table
    out: list[dict[str, Any]] = []
    for query, rows in table.frame[table.frame["bits"] >= 0].groupby("query", sort=True):
        firsts = list(rows.drop_duplicates(["output", "output_channels"])["observation"])
        if len(firsts) < 2 or len(out) >= 5:
            continue
        a, b = (table.observations[i] for i in firsts[:2])
        out.append(
            {
                "query": query,
                "a": _side(found, firsts[0]),
                "b": _side(found, firsts[1]),
                "first_diff_token": compare(a.output, b.output).fork,
            }
        )
    return out


def _side(found: Attribution, index: int) -> dict[str, Any]:
    table = found.analysis.table
    observation = table.observations[index]
    row = table.frame.iloc[index]
    ids = observation.output.token_ids
    return {
        "condition": ", ".join(f"{b.label} {row[b.column]}" for b in table.bundles)[:200],
        "text": observation.output.text,
        "token_ids": None if ids is None else list(ids),
    }
