"""Attribution: static findings, then controls, contrasts and mechanisms, in that order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from detdiag.evidence.case import Case
from detdiag.evidence.finding import Evidence, Finding
from detdiag.evidence.observation import Observation
from detdiag.verdict.analysis import Analysis, analyse
from detdiag.verdict.attribution import Attribution
from detdiag.verdict.causes import (
    Cause,
    contrast_cause,
    explains,
    merge,
    ranked,
    settle_interplay,
)
from detdiag.verdict.contrast_findings import one_off, shown
from detdiag.verdict.contrasts import Contrast
from detdiag.verdict.endpoint import attribute_endpoint
from detdiag.verdict.mechanisms import (
    ArgmaxCount,
    argmax_count,
    fork_findings,
    forks,
    sampling_state,
)
from detdiag.verdict.residue import (
    Pinned,
    drift_cause,
    failing_controls,
    operator_cause,
    pinned,
)
from detdiag.verdict.sampled import split_sampled
from detdiag.verdict.static_causes import with_static
from detdiag.verdict.table import Bundle


def attribute(case: Case, trials: Sequence[Observation]) -> Attribution:
    """Attribute the differences between ``trials`` (at least one)."""
    if case.target.get("kind") == "endpoint":
        return attribute_endpoint(case, trials)
    from detdiag.moe.recorded import routing_findings

    whole = analyse(trials, case.factor_layers)
    argmax = argmax_count(trials)
    config, rest = split_sampled(case, trials, whole, argmax)
    if not rest:
        proofs = [f for f in case.findings if f.outcome == "failed" and f.mechanism and f.proven]
        causes = config + merge([], proofs, whole.table, whole.divergence)
        return Attribution(whole, tuple(ranked(causes)), findings=case.findings, argmax=argmax)
    analysis = whole if len(rest) == len(trials) else analyse(rest, case.factor_layers)
    count = forks(analysis.table)
    greedy = all(sampling_state(o) == "greedy" for o in rest)
    static = [f for f in case.findings if f.outcome == "failed" and not f.mechanism]
    static += [f for f in case.findings if f.data.get("describes")]
    given = [f for f in case.findings if f.outcome == "failed" and f.mechanism]
    routing = [f for f in routing_findings(rest) if not any(g.layer == "moe" for g in given)]
    mechanisms = [
        *given,
        *fork_findings(analysis.table, count, greedy),
        *(f for f in routing if f.mechanism and f.outcome == "failed"),
    ]
    mechanisms += _argmax_finding(rest, argmax, mechanisms, greedy)
    flips = [c for c in analysis.contrasts if c.k]
    passive = bool(case.method.get("passive"))
    blamed = [c for c in flips if shown(c) and not (passive and one_off(c))]
    strong, contributors = settle_interplay(analysis, blamed)
    known = [c for c in strong if c.bundle.layer != "unknown"]
    causes = merge(known, mechanisms, analysis.table, analysis.divergence)
    if count.moved and any(m.explains == ("*",) for m in mechanisms):
        causes += _kept_beside_ties(known, causes, analysis)
    held = pinned(analysis.table, rest, argmax, passive=passive)
    causes += _residue(analysis, causes, held)
    causes = with_static(case, static, config + causes, analysis)
    named = [b for c in strong for b in (c.bundle,)] + [c.bundle for c in contributors]
    apart = [] if analysis.always_restless else analysis.confounded(named)
    confounded = tuple(kept for s, _ in apart if (kept := _without_symptoms(s)))
    joint = _same_input(confounded, analysis) if not causes else None
    if joint is not None:
        causes, confounded = [joint], ()
    if passive:
        causes = [_associated(c) for c in causes]
    return Attribution(
        analysis,
        tuple(ranked(causes)),
        tuple(contributors),
        tuple(case.findings) + tuple(f for f in (*routing, *mechanisms) if f not in case.findings),
        tuple(s for s in confounded if len(s) > 1),
        tuple(c for c in flips if c not in blamed or c.bundle.layer == "unknown"),
        held,
        argmax,
        count.moved,
    )


def _associated(cause: Cause) -> Cause:
    """Passive logs cap a contrast at association; a proof in one instance stands."""
    return (
        cause
        if cause.finding.proven or not cause.contrasts
        else replace(cause, confidence="suspected")
    )


def _argmax_finding(
    rest: Sequence[Observation], count: ArgmaxCount, known: Sequence[Finding], greedy: bool
) -> list[Finding]:
    """A chosen token below its own arg-max: something draws although nothing says so."""
    mine = count if len(rest) else ArgmaxCount(0, 0, None, 0)
    if not mine.below or any(f.layer in ("config", "decode") for f in known):
        return []
    return [
        Finding(
            layer="decode" if greedy else "config",
            rule="decode.sampler-draws" if greedy else "config.sampling-observed",
            outcome="failed",
            severity="high",
            kind=None if greedy else "sampling_still_on",
            summary=(
                f"{mine.below} of {mine.tokens} chosen tokens are not the arg-max of their own "
                "alternatives: something samples"
            ),
            evidence=(
                Evidence("tokens below their own arg-max", mine.below, mine.tokens, "tokens"),
            ),
            locus=mine.where,
            mechanism=True,
            explains=("*",),
            proven=True,
        )
    ]


def _kept_beside_ties(
    known: Sequence[Contrast], causes: Sequence[Cause], analysis: Analysis
) -> list[Cause]:
    """Contrasts that a tie took over although other forks show moved logits stay causes too."""
    taken = {
        c.bundle.column for cause in causes if cause.layer == "decode" for c in cause.contrasts
    }
    return [
        contrast_cause(c, analysis.table)
        for c in known
        if c.bundle.column in taken and c.bundle.layer != "decode"
    ]


def _residue(analysis: Analysis, causes: Sequence[Cause], held: Pinned) -> list[Cause]:
    """Causes of a failing control that nothing found so far explains."""
    explained = any(
        explains(c.finding, ("repeat",)) or any(x.mode != "location" for x in c.contrasts)
        for c in causes
    )
    controls = failing_controls(analysis)
    if analysis.jitter:
        view = replace(analysis, controls=analysis.jitter, divergence="bitwise", level="bits")
        cause = operator_cause(view, held, None)
        return [] if cause is None or explained else [cause]
    if not controls or explained:
        return []
    moved = drift_cause(analysis)
    if moved is not None:
        return [moved]
    cause = operator_cause(analysis, held, _control_change(analysis))
    return [] if cause is None else [cause]


def _control_change(analysis: Analysis) -> float | None:
    """Largest log-probability change between repeats of one condition, in nats."""
    from detdiag.verdict.outcome import compare

    columns = [
        "query",
        f"{analysis.level}_channels",
        *(b.column for b in analysis.table.bundles),
    ]
    best: float | None = None
    for _, rows in analysis.table.frame.groupby(columns, sort=False):
        firsts = list(rows.drop_duplicates(analysis.level)["observation"])[:20]
        for other in firsts[1:]:
            change = compare(
                analysis.table.observations[firsts[0]].output,
                analysis.table.observations[other].output,
            ).max_nat
            if change is not None and (best is None or change > best):
                best = change
    return best


def _without_symptoms(bundles: tuple[Bundle, ...]) -> tuple[Bundle, ...]:
    """A cache hit or miss that only goes with other bytes follows from them."""
    if any(b.layer == "input" for b in bundles):
        return tuple(b for b in bundles if b.column != "f:cache")
    return bundles


def _same_input(confounded: Sequence[tuple[Bundle, ...]], analysis: Analysis) -> Cause | None:
    """Only prompt bytes (and the cache hits that follow from them) differ: that is ``input``."""
    if analysis.control_k or not analysis.control_n:
        return None
    if not confounded or any(len(s) != 1 or s[0].layer != "input" for s in confounded):
        return None
    bundle = confounded[0][0]
    finding = Finding(
        layer="input",
        rule="input.bytes-differ",
        outcome="failed",
        severity="high",
        subject=bundle.factors[0],
        summary=(
            f"answers change only where {bundle.label} does; 0 of {analysis.control_n} repeats "
            "of identical bytes differ"
        ),
    )
    return Cause("input", finding.rule, "likely", finding, analysis.divergence)
