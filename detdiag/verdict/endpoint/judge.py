"""From the arms of a live server to causes: gates first, then idle, routes, load, cache, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from detdiag.evidence.case import Case
from detdiag.evidence.finding import Evidence, Finding, Remedy
from detdiag.verdict.endpoint.arms import association_p, constant_inside
from detdiag.verdict.endpoint.cache_arms import CacheResult, cache_finding, cache_result
from detdiag.verdict.endpoint.idle import Idle, idle_summary
from detdiag.verdict.endpoint.load_arms import LoadResult, load_cause, load_open, load_result
from detdiag.verdict.endpoint.opening import (
    Open,
    change_open,
    draw_open,
    few_open,
    load_open_case,
    pool_open,
    reuse_open,
)
from detdiag.verdict.endpoint.routes import (
    ChangePoint,
    Route,
    change_point,
    drift_finding,
    regroup,
    route,
    route_finding,
    route_passed,
    routes,
)
from detdiag.verdict.endpoint.samples import (
    LABELS,
    Sample,
    by_group,
    distinct,
    largest_change_nat,
)
from detdiag.verdict.endpoint.session_shift import ALARM, session_shift, shift_finding
from detdiag.verdict.report_object import Confidence
from detdiag.verdict.residue import FAR_ABOVE_ROUNDING_NAT
from detdiag.verdict.stats import ALPHA, holm, wilson

Named = tuple[Finding, Confidence]


@dataclass(frozen=True, slots=True)
class Judged:
    """``named`` are causes with their confidence; ``findings`` what was measured besides;
    ``open`` is set where something differs and no cause can be named."""

    named: tuple[Named, ...] = ()
    findings: tuple[Finding, ...] = ()
    open: Open | None = None


@dataclass(slots=True)
class _Tests:
    """Raw results of one family of tests and their Holm-adjusted p."""

    idle: Idle | None
    routes: list[Route]
    session: Route | None
    load: LoadResult | None
    cache: CacheResult | None
    p: Mapping[str, float] = field(default_factory=dict)


def judge_arms(case: Case, samples: Sequence[Sample], *, logprobs: bool, undrawn: bool) -> Judged:
    """Judge samples whose outcomes no gate has explained; ``undrawn``: the gates could have seen
    a draw (log-probabilities, or a knob contrast that cleared it)."""
    now = [s for s in samples if s.session == "now"]
    tests = _family(samples, now, None)
    explaining = _explaining(tests)
    named: list[Named] = []
    if explaining is not None:
        chosen = explaining.label == "replica" and int(case.method.get("replicas") or 1) > 1
        sure: Confidence = "confirmed" if chosen else "likely"
        finding = route_finding(explaining, tests.p[explaining.label], chosen=chosen)
        finding = _with_facts(finding, case, "version.replica-facts-differ") if chosen else finding
        named.append((finding, sure))
        now = regroup(now, explaining.label)
        samples = regroup(samples, explaining.label)
        tests = _family(samples, now, explaining)
    steady = distinct(s for s in now if s.arm == "idle") <= 1
    findings = [*map(route_passed, tests.routes), *_repeating(now)] if steady else []
    more, told, opened = _arms(case, tests, steady)
    told = told if logprobs else [_of_text(f) for f in told]
    named += _jointly(more)
    findings += told
    if not steady:
        extra, opened = _restless(case, now, tests, undrawn=undrawn)
        named += extra
    drifted, shifted = _sessions(case, samples, tests)
    named += drifted
    findings += shifted
    if opened is None and not named and distinct(samples) > 1:
        opened = _leftover(case, now, tests)
    return Judged(tuple(named), tuple(findings), opened)


def _repeating(now: Sequence[Sample]) -> list[Finding]:
    """Idle pairs inside one group; passed where there are enough to say so."""
    pairs, apart = _pairs([s for s in now if s.arm == "idle"])
    if apart or pairs < 3:
        return []
    return [
        Finding(
            "operator", "operator.not-repeatable", "passed",
            f"identical requests, one at a time, repeat: 0 of {pairs} pairs differ",
            evidence=(
                Evidence("identical idle requests differ", 0, pairs, "pairs", wilson(0, pairs)),
            ),
        )
    ]  # fmt: skip


def _pairs(samples: Sequence[Sample]) -> tuple[int, int]:
    """(pairs inside a group, pairs with other outcomes)."""
    pairs = apart = 0
    for members in by_group(samples).values():
        outcomes = [s.outcome for s in members]
        pairs += len(outcomes) * (len(outcomes) - 1) // 2
        apart += sum(a != b for i, a in enumerate(outcomes) for b in outcomes[:i])
    return pairs, apart


def _family(samples: Sequence[Sample], now: Sequence[Sample], explained: Route | None) -> _Tests:
    idle = [s for s in now if s.arm == "idle"]
    restless = distinct(idle) > 1
    tests = _Tests(
        idle_summary(now),
        [] if explained is not None else routes(idle),
        route([s for s in samples if s.arm == "idle"], "session"),
        load_result(now),
        cache_result(now),
    )
    raw = {r.label: r.p for r in tests.routes} if restless else {}
    if explained is not None:
        raw[explained.label] = explained.p
    for name, result in (("session", tests.session), ("load", tests.load), ("cache", tests.cache)):
        if result is not None:
            raw[name] = result.p
    tests.p = dict(zip(raw, holm(list(raw.values())), strict=True))
    return tests


def _explaining(tests: _Tests) -> Route | None:
    """The most telling label that sorts the idle answers completely."""
    fitting = [r for r in tests.routes if r.constant and tests.p.get(r.label, 1.0) <= ALPHA]
    order = [*LABELS, "connection"]
    return min(fitting, key=lambda r: order.index(r.label), default=None)


def _arms(
    case: Case, tests: _Tests, steady: bool
) -> tuple[list[Named], list[Finding], Open | None]:
    """Load and cache; blamed only where the idle arm repeats everywhere."""
    named: list[Named] = []
    told: list[Finding] = []
    opened: Open | None = None
    load, cache = tests.load, tests.cache
    cleared = False
    if load is not None:
        p = tests.p["load"]
        cause = load_cause(load, p, sole=_sole(case)) if steady else None
        if cause is not None:
            named.append((cause, "confirmed" if cause.proven else "likely"))
        else:
            finding = load_open(load, p)
            cleared = finding.outcome == "passed" and steady
            told.append(finding if steady else unsettled(finding))
            opened = load_open_case(case, load, p) if load.fresh and steady else None
    if cache is not None:
        finding = cache_finding(cache, tests.p["cache"])
        if finding.outcome == "failed" and steady:
            named.append((finding, "confirmed" if finding.proven else "likely"))
        else:
            told.append(finding if cleared or finding.outcome != "passed" else unsettled(finding))
            if not steady and finding.outcome == "failed":
                told[-1] = unsettled(finding)
    return named, told, opened


def _with_facts(finding: Finding, case: Case, rule: str) -> Finding:
    """What the servers say of themselves otherwise, where they say it."""
    told = next((f.summary for f in case.findings if f.rule == rule), None)
    return finding if told is None else replace(finding, summary=f"{finding.summary}; {told}")


_TOO: Final = {
    "batch.load-sensitive": "bursts change the answers too",
    "batch.prefix-reuse": "a cold prefix cache changes them too",
}


def _jointly(named: Sequence[Named]) -> list[Named]:
    """Load and cache that both change the answers name each other."""
    if len(named) < 2:
        return list(named)
    out = []
    for finding, sure in named:
        others = [_TOO[f.rule] for f, _ in named if f.rule != finding.rule and f.rule in _TOO]
        summary = "; ".join([finding.summary, *others])
        out.append((replace(finding, summary=summary), sure))
    return out


def _of_text(finding: Finding) -> Finding:
    """Text hides rounding that flips no token."""
    if finding.outcome != "passed":
        return finding
    return replace(
        finding, summary=f"{finding.summary}; seen in the text only, bits may still move"
    )


def unsettled(finding: Finding) -> Finding:
    """A result that clears or blames nothing while something more basic is open."""
    return replace(finding, outcome="inconclusive", mechanism=False, proven=False)


def _restless(
    case: Case, now: Sequence[Sample], tests: _Tests, *, undrawn: bool
) -> tuple[list[Named], Open | None]:
    """The idle arm does not repeat and no label goes with it."""
    idle = [s for s in now if s.arm == "idle"]
    assert tests.idle is not None
    change = largest_change_nat(idle)
    moved = change_point(idle)
    if moved is not None and moved.p <= ALPHA:
        if change is not None and change > FAR_ABOVE_ROUNDING_NAT:
            return [(_moved_finding(moved, change), "suspected")], None
        return [], change_open(case, moved.before, moved.after, moved.p)
    reused = _by_cached_tokens(idle)
    if reused is not None:
        return ([(reused, "likely")], None) if _sole(case) else ([], reuse_open(reused.summary))
    if not _sole(case):
        return [], pool_open(case, tests.idle, change, undrawn=undrawn)
    if not undrawn:
        return [], draw_open(case, tests.idle)
    return [(_operator_finding(idle, tests.idle, change), "likely")], None


def _sole(case: Case) -> bool:
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
    pairs, apart = _pairs(idle)
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


def _sessions(
    case: Case, samples: Sequence[Sample], tests: _Tests
) -> tuple[list[Named], list[Finding]]:
    """Against the baseline: sessions that repeat themselves by their answers, others by means."""
    found = tests.session
    if found is None:
        return [], []
    if not found.constant:
        return _shifted(case, samples)
    if tests.p["session"] > ALPHA:
        return [], []
    idle = [s for s in samples if s.arm == "idle"]
    before = sum(s.session != "now" for s in idle)
    finding = drift_finding(found, tests.p["session"], before, len(idle) - before)
    return [(_with_facts(finding, case, "version.server-facts-changed"), "likely")], []


def _shifted(case: Case, samples: Sequence[Sample]) -> tuple[list[Named], list[Finding]]:
    shift = session_shift(samples)
    if shift is None or shift.p > ALARM:
        return [], []
    finding = _with_facts(shift_finding(shift), case, "version.server-facts-changed")
    return ([(finding, "suspected")], []) if shift.far else ([], [finding])


def _leftover(case: Case, now: Sequence[Sample], tests: _Tests) -> Open:
    names = []
    if tests.cache is not None and (tests.cache.odd or tests.cache.warm_apart):
        names.append("a cold prefix cache")
    if tests.session is not None and tests.session.p < 1.0:
        names.append("the baseline session")
    return few_open(case, names)
