"""Attribution of a live server: the arms were chosen by the prober, so their own tests decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from detdiag.evidence.case import Case
from detdiag.evidence.finding import Finding
from detdiag.evidence.observation import Observation
from detdiag.verdict.analysis import Analysis, analyse
from detdiag.verdict.attribution import Attribution
from detdiag.verdict.causes import Cause, ranked
from detdiag.verdict.contrasts import controls
from detdiag.verdict.endpoint.judge import Judged, judge_arms, unsettled
from detdiag.verdict.endpoint.masking import Masked, masked
from detdiag.verdict.endpoint.opening import (
    Open,
    cut_open,
    further,
    masked_open,
    stopped_open,
)
from detdiag.verdict.endpoint.prompt_gate import prompt_finding
from detdiag.verdict.endpoint.samples import context, read_samples
from detdiag.verdict.endpoint.sampling import (
    KNOB_RULE,
    choice_varies,
    draw_finding,
    effective,
    greedy_finding,
    knob_finding,
    moved_finding,
    tie_finding,
)
from detdiag.verdict.mechanisms import ArgmaxCount, ForkCount, argmax_count, forks, sampling_state
from detdiag.verdict.report_object import Confidence
from detdiag.verdict.sampled import sampling_causes
from detdiag.verdict.table import Bundle, build_table


def attribute_endpoint(case: Case, trials: Sequence[Observation]) -> Attribution:
    """Gates (cache, prompt, draw, tie), then idle, routes, load, cache and baseline."""
    hidden = masked(trials, case.observations)
    evidence = [o for o in trials if o.id not in hidden.ids] or list(trials)
    fork_count = forks(build_table(evidence, case.factor_layers))
    argmax = argmax_count(evidence)
    config = _config(case, evidence, argmax)
    gates = _gates(case, evidence, argmax, fork_count, bool(config))
    drawn = bool(config) or any(
        f.outcome == "failed" and f.layer in ("config", "decode") for f in gates
    )
    judged = Judged()
    if not any(f.outcome == "failed" and f.layer == "input" for f in gates):
        samples = read_samples(evidence, first_only=drawn)
        logprobs = any(o.output.positions for o in evidence)
        cleared = any(f.rule == KNOB_RULE and f.outcome == "passed" for f in gates)
        judged = judge_arms(case, samples, logprobs=logprobs, undrawn=logprobs or cleared)
        judged = replace(judged, open=None) if drawn else judged
    analysis = _shown(case, evidence, judged, bool(hidden.ids))
    named = [(f, _sure(f)) for f in gates if f.outcome == "failed"] + list(judged.named)
    causes = config + [_cause(f, sure, analysis) for f, sure in named]
    causes += _static(case, causes)
    layers = {c.layer for c in causes}
    told = [*gates, *judged.findings, *filter(None, [hidden.finding()])]
    return Attribution(
        analysis,
        tuple(_in_order(causes)),
        findings=(
            *case.findings,
            *(unsettled(f) if hidden.ids and f.outcome == "passed" else f for f in told),
            *(f for f, _ in judged.named),
        ),
        weak=tuple(c for c in analysis.contrasts if c.k and c.bundle.layer not in layers),
        argmax=argmax,
        forks_moved=fork_count.moved,
        open=None if causes else _opened(case, trials, hidden, judged),
        further=further(case, judged.findings),
    )


def _config(case: Case, evidence: Sequence[Observation], argmax: ArgmaxCount) -> list[Cause]:
    """Requests that sample by their own words, or leave it to the server."""
    if all(sampling_state(o) == "greedy" for o in evidence):
        return []
    whole = analyse(_plain(evidence, connections=False), case.factor_layers)
    causes = sampling_causes(case, evidence, whole, argmax)
    refused = next((f for f in case.findings if f.data.get("refused") == "temperature"), None)
    return causes if refused is None else [_without_choice(c, refused) for c in causes]


def _without_choice(cause: Cause, refused: Finding) -> Cause:
    """No temperature was sent because the server takes none of 0: that is no omission."""
    summary = f"{refused.summary}; {cause.finding.summary}"
    told = replace(
        cause.finding, rule=refused.rule, kind=refused.kind, summary=summary,
        remedy=refused.remedy, data=refused.data,
    )  # fmt: skip
    return replace(cause, rule=refused.rule, finding=told)


def _gates(
    case: Case,
    evidence: Sequence[Observation],
    argmax: ArgmaxCount,
    count: ForkCount,
    sampled: bool,
) -> list[Finding]:
    """Prompt, draw, tie and knobs, each failed or passed; a request that samples by its own words
    needs no proof that something draws."""
    choices, temperature = effective(evidence)
    prompt = prompt_finding(evidence)
    draw = knob = tie = passed = None
    if not sampled:
        draw = draw_finding(choices, argmax, count, varied=choice_varies(evidence))
        knob = knob_finding(case.observations)
        tie = None if draw is not None else tie_finding(choices, count)
        settled = draw is None and (tie is None or tie.proven)
        passed = greedy_finding(temperature) if settled else None
        passed = passed or (None if draw is not None else moved_finding(argmax))
    return [f for f in (prompt, draw, tie, knob, passed) if f is not None]


def _shown(case: Case, evidence: Sequence[Observation], judged: Judged, hidden: bool) -> Analysis:
    """The counts of the report. Connections that change nothing are no condition of their own;
    batch contrasts that flip nothing clear nothing (the arms' own tests do); replies of a response
    cache clear nothing at all."""
    inert = any(
        f.rule == "version.replica-behind-balancer" and f.outcome == "passed"
        for f in judged.findings
    )
    analysis = _apart(analyse(_plain(evidence, connections=not inert), case.factor_layers))
    if hidden:
        return replace(analysis, contrasts=(), controls=())
    kept = tuple(c for c in analysis.contrasts if c.k or c.bundle.layer != "batch")
    return replace(analysis, contrasts=kept)


def _apart(analysis: Analysis) -> Analysis:
    """No two replies inside bursts had the same company, so they are no identical conditions."""
    table = analysis.table
    alone = [context(o).get("arm") != "burst" for o in table.observations]
    if all(alone):
        return analysis
    own = ["none" if alone[i] else f"burst reply {i}" for i in table.frame["observation"]]
    bundle = Bundle("company", ("company",), "batch")
    table = replace(table, frame=table.frame.assign(company=own), bundles=(*table.bundles, bundle))
    kept = [c for c in controls(table, analysis.level) if c.condition[-1][1] == "none"]
    return replace(
        analysis,
        table=table,
        controls=tuple(replace(c, condition=c.condition[:-1]) for c in kept),
    )


def _plain(observations: Sequence[Observation], *, connections: bool) -> list[Observation]:
    """Without the exact dose of a burst (it has a test of its own), and connections if asked."""
    dropped = {"in_flight_tokens"} | (set() if connections else {"connection"})
    return [
        replace(o, factors={k: v for k, v in o.factors.items() if k not in dropped})
        for o in observations
    ]


def _in_order(causes: Sequence[Cause]) -> list[Cause]:
    """Servers that were named side by side are what was asked about: where they differ at idle,
    that comes before what load or a cache does to one of them."""
    found = ranked(causes)
    apart = [c for c in found if c.rule == "version.replica-changes-output" and c.finding.proven]
    rest = [c for c in found if c not in apart]
    later = (i for i, c in enumerate(rest) if c.layer not in ("config", "input"))
    at = next(later, len(rest))
    return [*rest[:at], *apart, *rest[at:]]


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
    case: Case, trials: Sequence[Observation], hidden: Masked, judged: Judged
) -> Open | None:
    if judged.open is not None:
        return judged.open
    if hidden.ids:
        return masked_open(case, hidden)
    stopped = next((f for f in case.findings if f.rule == "config.calls-stopped"), None)
    if stopped is not None:
        return stopped_open(case, stopped.summary, len(trials))
    cut = next((p for p in case.probes if p.state == "out_of_budget"), None)
    cleared = any(
        f.rule == "batch.load-sensitive" and f.outcome == "passed" for f in judged.findings
    )
    return cut_open(case, cut.reason, len(trials)) if cut is not None and not cleared else None
