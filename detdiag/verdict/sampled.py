"""Observations that sample by their own words, and the cause that they are."""

from __future__ import annotations

from collections.abc import Sequence

from detdiag.evidence.case import Case
from detdiag.evidence.observation import Observation
from detdiag.verdict.analysis import Analysis, analyse
from detdiag.verdict.causes import Cause
from detdiag.verdict.mechanisms import ArgmaxCount, argmax_count, sampling_state
from detdiag.verdict.residue import sampling_cause


def split_sampled(
    case: Case, trials: Sequence[Observation], whole: Analysis, argmax: ArgmaxCount
) -> tuple[list[Cause], list[Observation]]:
    """(config causes from observations that sample, the observations left to judge)."""
    live = case.target.get("kind") == "local"  # a probe's own runs say themselves how they draw
    audited = not live and any(
        f.layer == "config" and f.outcome == "failed" and f.kind == "sampling_still_on"
        for f in case.findings
    )
    told = {i for f in case.findings for i in f.data.get("sampled_observations", ())}
    sampled = [
        o
        for o in trials
        if sampling_state(o) in ("sampling", "defaulted")
        or o.id in told
        or (audited and sampling_state(o) == "unknown")
    ]
    if not sampled:
        return [], list(trials)
    rest = [o for o in trials if o not in sampled] if len(sampled) < len(trials) else []
    of_sampled = whole if not rest else analyse(sampled, case.factor_layers)
    quiet = analyse(rest, case.factor_layers) if rest else None
    repeats = quiet is not None and quiet.control_n > 0 and quiet.control_k == 0
    cause = sampling_cause(sampled, of_sampled, argmax_count(sampled), repeats)
    if cause is None:
        return [], list(trials)
    return [cause], rest


def sampling_causes(
    case: Case, trials: Sequence[Observation], whole: Analysis, argmax: ArgmaxCount
) -> list[Cause]:
    """Config causes of observations whose own parameters sample, or leave it to the server."""
    return split_sampled(case, trials, whole, argmax)[0]
