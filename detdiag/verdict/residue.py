"""A control that fails and that no contrast explains: operator, drift, or not enough recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from detdiag.evidence.finding import Evidence, Finding
from detdiag.evidence.observation import Observation
from detdiag.verdict.analysis import Analysis
from detdiag.verdict.causes import Cause
from detdiag.verdict.contrasts import Control
from detdiag.verdict.mechanisms import ArgmaxCount, drift, parameters, sampling_state
from detdiag.verdict.stats import ALPHA, wilson
from detdiag.verdict.table import Table, canonical_value

FAR_ABOVE_ROUNDING_NAT: Final = 0.2
"""Just above the largest within-load change (0.18 nat) in the public server snapshots that the
project's notes collect; beyond it a difference is not blamed on rounding."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """Which hidden conditions the record excludes; ``missing`` names what it does not."""

    schedule: bool
    cache: bool
    process: bool
    greedy: bool
    missing: tuple[str, ...]


def pinned(
    table: Table, observations: Sequence[Observation], argmax: ArgmaxCount, *, passive: bool = False
) -> Pinned:
    """What is held fixed inside every condition of these observations.

    In ``passive`` logs a concurrency of 1 is the client's own: it says nothing about others.
    """
    recorded = set(table.constant) | {f for b in table.bundles for f in b.factors}
    solo = all(
        canonical_value(o.factors.get("batch_size")) == "1"
        or (not passive and canonical_value(o.factors.get("concurrency")) == "1")
        for o in observations
    )
    schedule = solo or "neighbours" in recorded
    cache = bool({"cached_tokens", "prefix_cache"} & recorded)
    process = "process" in recorded
    states = {sampling_state(o) for o in observations}
    greedy = states == {"greedy"} or (
        states <= {"greedy", "unknown"} and argmax.tokens >= 20 and argmax.below == 0
    )
    missing = tuple(
        name
        for name, held in (
            ("who shares the batch (batch_size, concurrency, neighbours)", schedule),
            ("cached_tokens", cache),
            ("process or replica", process),
            ("temperature or do_sample", greedy),
        )
        if not held
    )
    return Pinned(schedule, cache, process, greedy, missing)


def failing_controls(analysis: Analysis) -> list[Control]:
    return [c for c in analysis.controls if c.k]


def drift_cause(analysis: Analysis) -> Cause | None:
    """All answers change once in time and never back, with nothing else recorded to differ."""
    found = drift(analysis.table, analysis.level)
    if found is None or found.p > ALPHA:
        return None
    finding = Finding(
        layer="version",
        rule="version.drift",
        outcome="failed",
        severity="high",
        subject="time",
        summary=(
            f"in order of time {found.before} equal answers are followed by {found.after} other "
            f"equal ones: one change point, never back (p = {found.p:.2g})"
        ),
        evidence=(
            Evidence("runs after the change point", found.after, found.before + found.after),
        ),
    )
    return Cause("version", finding.rule, "suspected", finding, analysis.divergence)


def operator_cause(analysis: Analysis, held: Pinned, max_nat: float | None) -> Cause | None:
    """``operator`` where every condition fails its own control with nothing left to vary."""
    with_pairs = [c for c in analysis.controls if c.n]
    failing = failing_controls(analysis)
    if not failing or len(failing) < len(with_pairs):
        return None
    if not (held.schedule and held.greedy):
        return None
    far = max_nat is not None and max_nat > FAR_ABOVE_ROUNDING_NAT
    if far and not (held.process and held.cache):
        return None
    k, n = sum(c.k for c in failing), sum(c.n for c in failing)
    finding = Finding(
        layer="operator",
        rule="operator.not-repeatable",
        outcome="failed",
        severity="high",
        summary=(
            f"identical conditions do not repeat: {k} of {n} pairs differ, in every one of "
            f"{len(failing)} conditions"
        ),
        evidence=tuple(
            Evidence(
                "identical conditions differ", c.k, c.n, "pairs", wilson(c.k, c.n),
                tuple(f"{name}={value}"[:80] for name, value in c.condition),
            )
            for c in failing[:12]
        ),
        data={} if max_nat is None else {"max_nat": max_nat},
    )  # fmt: skip
    full = held.cache and held.process
    return Cause(
        "operator", finding.rule, "likely" if full else "suspected", finding, analysis.divergence
    )


def sampling_cause(
    sampled: Sequence[Observation], analysis: Analysis, argmax: ArgmaxCount, greedy_repeats: bool
) -> Cause | None:
    """``config`` where requests that still sample do not repeat (or were never repeated)."""
    if analysis.divergence == "none" or (analysis.control_n and not analysis.control_k):
        return None
    explicit = [o for o in sampled if sampling_state(o) == "sampling"]
    rule = "config.sampling-still-on" if explicit else "config.unspecified-default"
    shown = sorted({_settings(o) for o in sampled})
    finding = Finding(
        layer="config",
        rule=rule,
        outcome="failed",
        severity="high",
        kind="sampling_still_on" if explicit else "unspecified_default",
        subject="temperature",
        summary=(
            f"{len(sampled)} observations were made with sampling on ({'; '.join(shown[:3])}); "
            f"{analysis.control_k} of {analysis.control_n} identical repeats differ"
        ),
        evidence=(
            Evidence(
                "identical conditions differ", analysis.control_k, analysis.control_n, "pairs",
                wilson(analysis.control_k, analysis.control_n),
            ),
            Evidence("tokens below their own arg-max", argmax.below, argmax.tokens, "tokens"),
        ),
    )  # fmt: skip
    sure = bool(argmax.below) or greedy_repeats
    return Cause("config", rule, "confirmed" if sure else "likely", finding, analysis.divergence)


def _settings(observation: Observation) -> str:
    known = parameters(observation)
    shown = [
        f"{k} {known[k]}" for k in ("do_sample", "temperature", "top_p", "top_k") if k in known
    ]
    return ", ".join(shown) or "no temperature in the request, so the server's default applies"
