"""Attribution of a live server: the arms were chosen by the prober, so their own tests decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from detdiag.evidence.case import Case
from detdiag.evidence.finding import Finding
from detdiag.evidence.observation import Observation
from detdiag.verdict.analysis import Analysis, analyse
from detdiag.verdict.attribute import Attribution, sampling_causes
from detdiag.verdict.causes import Cause, ranked
from detdiag.verdict.endpoint.judge import Judged, judge_arms
from detdiag.verdict.endpoint.masking import masked
from detdiag.verdict.endpoint.opening import Open, masked_open, stopped_open
from detdiag.verdict.endpoint.prompt_gate import prompt_finding
from detdiag.verdict.endpoint.samples import read_samples
from detdiag.verdict.endpoint.sampling import (
    draw_finding,
    effective,
    greedy_finding,
    knob_finding,
    tie_finding,
)
from detdiag.verdict.mechanisms import argmax_count, forks
from detdiag.verdict.report_object import Confidence


def attribute_endpoint(case: Case, trials: Sequence[Observation]) -> Attribution:
    """Gates (cache, prompt, draw, tie), then idle, routes, load, cache and baseline."""
    hidden = masked(trials)
    evidence = [o for o in trials if o.id not in hidden.ids] or list(trials)
    analysis = analyse(evidence, case.factor_layers)
    argmax = argmax_count(evidence)
    fork_count = forks(analysis.table)
    choices, temperature = effective(evidence)
    prompt = prompt_finding(evidence)
    config = sampling_causes(case, evidence, analysis, argmax)
    draw = draw_finding(choices, argmax, fork_count)
    knob = knob_finding(case.observations)
    tie = None if draw is not None else tie_finding(choices, fork_count)
    settled = draw is None and (tie is None or tie.proven)
    passed = greedy_finding(temperature) if settled else None
    gates = [f for f in (prompt, draw, tie, knob, passed, hidden.finding()) if f is not None]
    causes = list(config)
    if any(c.layer == "config" for c in config):
        gates = [f for f in gates if f is not draw and f is not knob]
    causes += [_cause(f, _sure(f), analysis) for f in gates if f.outcome == "failed"]
    causes += _static(case, causes)
    read_as_others = prompt is not None and prompt.outcome == "failed"
    drawn = bool(config) or any(
        f.outcome == "failed" and f.layer in ("config", "decode") for f in gates
    )
    judged = Judged()
    if not read_as_others:
        samples = read_samples(evidence, first_only=drawn)
        judged = judge_arms(case, samples, logprobs=bool(choices), knobs_ran=knob is not None)
        if drawn:
            judged = replace(judged, open=None)
    causes += [_cause(f, sure, analysis) for f, sure in judged.named]
    opened = None if causes else _opened(case, trials, evidence, bool(hidden.ids), judged)
    analysis = _witnessed(analysis, judged)
    named = {c.layer for c in causes}
    return Attribution(
        analysis,
        tuple(ranked(causes)),
        findings=(*case.findings, *gates, *judged.findings, *(f for f, _ in judged.named)),
        weak=tuple(c for c in analysis.contrasts if c.k and c.bundle.layer not in named),
        argmax=argmax,
        forks_moved=fork_count.moved,
        open=opened,
    )


def _cause(finding: Finding, sure: Confidence, analysis: Analysis) -> Cause:
    return Cause(
        finding.layer, finding.rule, sure, finding, analysis.divergence,
        stands_alone=finding.proven,
    )  # fmt: skip


def _sure(finding: Finding) -> Confidence:
    return "confirmed" if finding.proven else "likely"


def _static(case: Case, causes: Sequence[Cause]) -> list[Cause]:
    """What the prober proved without statistics (two replicas that differ in their own facts)."""
    proofs = [f for f in case.findings if f.outcome == "failed" and f.proven]
    return [
        Cause(f.layer, f.rule, "confirmed", f, "none", stands_alone=True)
        for f in proofs
        if not any(c.rule == f.rule for c in causes)
    ]


def _opened(
    case: Case,
    trials: Sequence[Observation],
    evidence: Sequence[Observation],
    hidden: bool,
    judged: Judged,
) -> Open | None:
    if judged.open is not None:
        return judged.open
    if hidden:
        return masked_open(case, masked(trials))
    stopped = next((f for f in case.findings if f.rule == "endpoint.stopped"), None)
    if stopped is not None:
        return stopped_open(case, stopped.summary, len(trials))
    return None


def _witnessed(analysis: Analysis, judged: Judged) -> Analysis:
    """Without a tested load arm, contrasts of the batch layer that flip nothing clear nothing."""
    cleared = any(
        f.rule == "batch.load-sensitive" and f.outcome == "passed" for f in judged.findings
    )
    if cleared:
        return analysis
    kept = tuple(c for c in analysis.contrasts if c.k or c.bundle.layer != "batch")
    return replace(analysis, contrasts=kept)
