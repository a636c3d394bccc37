"""What the number does not say, as message keys with their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from detdiag.score import bound
from detdiag.score.aggregate import mean_of
from detdiag.score.figures import PromptFigures
from detdiag.score.gate import Question, runs_for_units
from detdiag.score.sample import Sample
from detdiag.score.units import Units

FEW_PROMPTS: Final = 8
"""Below this many prompts a percentile interval over prompts is too narrow to trust."""


def limits_of(
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
    digest = mean_of(rows, "digest")
    if digest is not None and digest < (mean_of(rows, "agreement") or 0.0):
        out.append({"key": "limit.digests_moved", "moved": 1.0 - digest})
    if any(row.digested and row.digested < row.runs for row in rows):
        out.append({"key": "limit.some_digests"})
    if not any(row.digested for row in rows):
        out.append({"key": "limit.no_digests"})
    if any(row.unparsed for row in rows):
        out.append({"key": "limit.unparsed", "n": sum(row.unparsed or 0 for row in rows)})
    return out


def run_limits(method: Mapping[str, Any]) -> list[dict[str, Any]]:
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
    seen = mean_of(rows, "agreement")
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
