"""The idle arm does not repeat and no label goes with it: a change in time, reused prompts, or a
server of our own that never gives the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from detdiag.evidence.case import Case
from detdiag.evidence.finding import Evidence, Finding, Remedy
from detdiag.verdict.endpoint.arms import association_p, constant_inside
from detdiag.verdict.endpoint.idle import Idle
from detdiag.verdict.endpoint.opening import Open, change_open, draw_open, pool_open, reuse_open
from detdiag.verdict.endpoint.routes import ChangePoint, change_point
from detdiag.verdict.endpoint.samples import Sample, by_group, largest_change_nat, wall_s
from detdiag.verdict.report_object import Confidence
from detdiag.verdict.residue import FAR_ABOVE_ROUNDING_NAT
from detdiag.verdict.stats import ALPHA, wilson

Named = tuple[Finding, Confidence]
SLOWER: Final = 1.5
"""Times that a call takes which cannot reuse what the server holds, where that shows."""


def restless(
    case: Case, now: Sequence[Sample], found: Idle, *, undrawn: bool
) -> tuple[list[Named], Open | None]:
    """The idle arm does not repeat and no label goes with it."""
    idle = [s for s in now if s.arm == "idle"]
    change = largest_change_nat(idle)
    moved = change_point(idle)
    if moved is not None and moved.p <= ALPHA:
        if change is not None and change > FAR_ABOVE_ROUNDING_NAT:
            return [(_moved_finding(moved, change), "suspected")], None
        return [], change_open(case, moved.before, moved.after, moved.p)
    reused = _by_cached_tokens(idle)
    if reused is not None:
        return (
            ([(reused, "likely")], None) if sole_tenant(case) else ([], reuse_open(reused.summary))
        )
    carried = by_previous_prompt(now)
    if carried is not None:
        return [(carried, "likely")], None
    if not sole_tenant(case):
        return [], pool_open(case, found, change, undrawn=undrawn)
    if not undrawn:
        return [], draw_open(case, found)
    return [(_operator_finding(idle, found, change), "likely")], None


def sole_tenant(case: Case) -> bool:
    """Did the server's own counter show that all requests were ours?"""
    return any(f.data.get("sole_tenant") for f in case.findings)


def _by_cached_tokens(idle: Sequence[Sample]) -> Finding | None:
    """Idle answers that go with how many prompt tokens the server took from its cache."""

    def cached(sample: Sample) -> str | None:
        return None if sample.cached is None else str(sample.cached)

    if not constant_inside(idle, cached) or len({cached(s) for s in idle}) < 2:
        return None
    p = association_p(idle, cached)
    if p > ALPHA:
        return None
    return Finding(
        "batch", "batch.prefix-reuse", "failed",
        f"idle answers go with the number of cached prompt tokens (p = {p:.2g}), and repeat where "
        "it is the same",
        "high", subject="cached_tokens",
        evidence=(Evidence("p (cached tokens shuffled)", float(f"{p:.3g}")),),
        mechanism=True, explains=("cached_tokens", "prefix_cache"),
    )  # fmt: skip


def by_previous_prompt(now: Sequence[Sample], tests: int = 1) -> Finding | None:
    """Answers that go with what the same client asked just before, and repeat otherwise: no pool
    and no other tenant knows that. Cold and warm calls count for questions that were asked at
    idle too (another prompt came in between, and the question is the same). ``tests`` is how many
    tests share the level."""
    asked = {s.group for s in now if s.arm == "idle"}
    mine = [s for s in now if s.group in asked and s.arm in ("idle", "cold", "warm")]

    def after(sample: Sample) -> str | None:
        found = sample.context("after")
        return None if found is None else str(found)

    known = [s for s in mine if after(s)]
    seen = {(s.group, s.outcome) for s in known}
    apart = {g for g, members in by_group(known).items() if len({s.outcome for s in members}) > 1}
    known = [s for s in known if s.group in apart]
    if not known or any((s.group, s.outcome) not in seen for s in mine):
        return None
    p = min(1.0, tests * association_p(known, after))
    if not constant_inside(known, after) or p > ALPHA:
        return None
    another = [s for s in known if after(s) == "another"]
    same = [s for s in known if after(s) == "same"]
    walls = [median(wall_s(s.observation) for s in arm) for arm in (another, same)]
    slower = walls[0] / max(walls[1], 1e-9)
    reuse = slower >= SLOWER
    told = f", and come {slower:.2g} times as slow" if reuse else ""
    change = largest_change_nat(known)
    size = "" if change is None else f", by up to {change:.3g} nat"
    return Finding(
        "batch", "batch.prefix-reuse" if reuse else "batch.state-carried", "failed",
        f"answers after another prompt differ from those after the same one{size}{told}; "
        f"{len(another)} and {len(same)} replies, each kind repeats (p = {p:.2g})",
        "high", subject="cached_tokens" if reuse else "order",
        evidence=(
            Evidence("replies after another prompt", len(another), len(known), "replies"),
            Evidence("time after another prompt, over that after the same", round(slower, 2)),
            Evidence("p (what was asked before shuffled)", float(f"{p:.3g}")),
        ),
        mechanism=True, explains=("cached_tokens", "prefix_cache", "order"),
        remedy=Remedy(
            "turn prompt reuse between requests off, or ask a fresh server",
            command="llama.cpp: cache_prompt false; llama-cpp-python: start the server anew",
            cost="prompts are computed anew on every call",
            verify="answers after another prompt equal those after the same one",
        ),
    )  # fmt: skip


def _moved_finding(moved: ChangePoint, change: float) -> Finding:
    return Finding(
        "version", "version.drift", "failed",
        f"{moved.before} equal idle answers are followed by {moved.after} other equal ones: one "
        f"change, never back (p = {moved.p:.2g}), by up to {change:.3g} nat, more than rounding "
        "gives",
        "high", subject="time",
        evidence=(
            Evidence("replies after the change", moved.after, moved.before + moved.after),
        ),
        mechanism=True, explains=("repeat",),
    )  # fmt: skip


def _operator_finding(idle: Sequence[Sample], found: Idle, change: float | None) -> Finding:
    pairs, apart = pairs_of(idle)
    size = "" if change is None else f", by up to {change:.3g} nat"
    return Finding(
        "operator", "operator.not-repeatable", "failed",
        f"one request at a time on a server whose counters show no other requests gives "
        f"{found.words()}{size}",
        "high",
        evidence=(
            Evidence("identical idle requests differ", apart, pairs, "pairs", wilson(apart, pairs)),
            Evidence("distinct answers (Chao1 estimate)", round(found.chao1, 1)),
        ),
        mechanism=True, explains=("repeat",),
        remedy=Remedy(
            "diagnose the model on that machine: the operator can be named there",
            command="detdiag run --model FOLDER",
        ),
    )  # fmt: skip


def pairs_of(samples: Sequence[Sample]) -> tuple[int, int]:
    """(pairs inside a group, pairs with other outcomes)."""
    pairs = apart = 0
    for members in by_group(samples).values():
        outcomes = [s.outcome for s in members]
        pairs += len(outcomes) * (len(outcomes) - 1) // 2
        apart += sum(a != b for i, a in enumerate(outcomes) for b in outcomes[:i])
    return pairs, apart
