"""From the arms of a live server to causes: gates first, then idle, routes, load, cache, time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from detdiag.evidence.case import Case
from detdiag.evidence.finding import Evidence, Finding
from detdiag.verdict.endpoint.cache_arms import (
    CacheResult,
    bursts_miss,
    cache_finding,
    cache_result,
)
from detdiag.verdict.endpoint.idle import Idle, idle_summary
from detdiag.verdict.endpoint.load_arms import LoadResult, load_cause, load_open, load_result
from detdiag.verdict.endpoint.opening import Open, few_open, load_open_case
from detdiag.verdict.endpoint.restless import (
    Named,
    by_previous_prompt,
    pairs_of,
    restless,
    sole_tenant,
)
from detdiag.verdict.endpoint.routes import (
    Route,
    regroup,
    route,
    route_finding,
    route_passed,
    routes,
)
from detdiag.verdict.endpoint.samples import LABELS, Sample, after_alike, distinct
from detdiag.verdict.endpoint.sessions import sessions, with_facts
from detdiag.verdict.report_object import Confidence
from detdiag.verdict.stats import ALPHA, holm, wilson


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
        finding = with_facts(finding, case, "version.replica-facts-differ") if chosen else finding
        named.append((finding, sure))
        now = regroup(now, explaining.label)
        samples = regroup(samples, explaining.label)
        tests = _family(samples, now, explaining)
    steady = distinct(s for s in now if s.arm == "idle") <= 1
    findings = [*map(route_passed, tests.routes), *_repeating(now)] if steady else []
    more, told, opened = _arms(case, tests, steady)
    more = [*more, *(_carried(now, more, len(tests.p) + 1) if steady else [])]
    more, told = _misses(now, more, told)
    told = told if logprobs else [_of_text(f) for f in told]
    named += _jointly(more)
    findings += told
    if not steady:
        assert tests.idle is not None
        extra, opened = restless(case, now, tests.idle, undrawn=undrawn)
        named += extra
    if tests.session is not None:
        drifted, shifted = sessions(case, samples, tests.session, tests.p["session"])
        named += drifted
        findings += shifted
    if opened is None and not named and distinct(samples) > 1:
        opened = _leftover(case, now, tests)
    return Judged(tuple(named), tuple(findings), opened)


def _repeating(now: Sequence[Sample]) -> list[Finding]:
    """Idle pairs inside one group; passed where there are enough to say so."""
    pairs, apart = pairs_of([s for s in now if s.arm == "idle"])
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


def _family(samples: Sequence[Sample], now: Sequence[Sample], explained: Route | None) -> _Tests:
    idle = [s for s in now if s.arm == "idle"]
    moving = distinct(idle) > 1
    tests = _Tests(
        idle_summary(now),
        [] if explained is not None else routes(idle),
        route(after_alike([s for s in samples if s.arm == "idle"]), "session"),
        load_result(now),
        cache_result(now),
    )
    raw = {r.label: r.p for r in tests.routes} if moving else {}
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
        cause = load_cause(load, p, sole=sole_tenant(case)) if steady else None
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
            # alone it would clear the layer; beside a load effect it says what that is not
            known = cleared or any(f.rule == "batch.load-sensitive" for f, _ in named)
            told.append(finding if known or finding.outcome != "passed" else unsettled(finding))
            if not steady and finding.outcome == "failed":
                told[-1] = unsettled(finding)
    return named, told, opened


def _carried(now: Sequence[Sample], named: Sequence[Named], tests: int) -> list[Named]:
    """Too few cold starts for a test of their own, yet every one of them answers otherwise than
    all calls after the same prompt."""
    if any(finding.rule == "batch.prefix-reuse" for finding, _ in named):
        return []
    found = by_previous_prompt(now, tests)
    return [] if found is None else [(found, "likely")]


def _misses(
    now: Sequence[Sample], named: Sequence[Named], told: Sequence[Finding]
) -> tuple[list[Named], list[Finding]]:
    """Bursts that give nothing but the cold answers show the cache once more, and no load."""
    rules = {finding.rule for finding, _ in named}
    if not set(_TOO) <= rules or not bursts_miss(now):
        return list(named), list(told)
    kept = [pair for pair in named if pair[0].rule != "batch.load-sensitive"]
    load = next(f for f, _ in named if f.rule == "batch.load-sensitive")
    summary = f"{load.summary}; bursts give the answers of a cold cache and no others"
    return kept, [*told, unsettled(replace(load, summary=summary, remedy=None))]


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


def _leftover(case: Case, now: Sequence[Sample], tests: _Tests) -> Open:
    names = []
    if tests.cache is not None and (tests.cache.odd or tests.cache.warm_apart):
        names.append("a cold prefix cache")
    if tests.session is not None and tests.session.p < 1.0:
        names.append("the baseline session")
    return few_open(case, names)
