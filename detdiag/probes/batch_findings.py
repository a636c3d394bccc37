"""Where the batch contrasts of one prompt arise: module by hooks, operator by proof."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from detdiag.evidence.finding import Evidence, Finding
from detdiag.evidence.record import Event
from detdiag.probes.batch_wording import contrast_finding
from detdiag.probes.conditions import BASE, Condition
from detdiag.probes.figures import heatmap
from detdiag.probes.freeze import pins
from detdiag.probes.interface import ProbeContext
from detdiag.probes.modules import Birth, Comparison, ModuleLog, compare_logs
from detdiag.probes.places import is_gemm
from detdiag.probes.proof import (
    batch_proof,
    conclusive,
    proof_findings,
    proof_tables,
    with_operator,
)
from detdiag.probes.runs import bench
from detdiag.probes.trials import Trials, changed_cases
from detdiag.targets.local import LocalTarget
from detdiag.targets.padding import Padded
from detdiag.trace import Proof


def findings(
    context: ProbeContext, trials: Trials, left: list[str], factors: Sequence[str]
) -> Iterator[Event]:
    """One mechanism finding per factor whose contrast changes bits, and a first heatmap."""
    drawn = bool(context.scratch.get("heatmap"))
    for factor in factors:
        cases = changed_cases(trials, factor)
        if not cases:
            continue
        condition, against, row = cases[0]
        if factor == "batch_size" and not _stabiliser(trials).sources:
            context.scratch.setdefault("batch_case", condition)
        tokens = condition.tokens + trials.conditions[against].tokens
        if context.remaining_s() < bench(context).clock.forward_s(2, tokens):
            left.append(f"module of the {factor} difference")
            yield contrast_finding(context, trials, factor, cases, None, None)
            continue
        logs = tuple(_log(context, trials, c, r) for c, r in _arms(trials, condition, against, row))
        compared = compare_logs(*logs, skip=tuple(_stabiliser(trials).pinned))
        birth = _named(compared)
        if birth is not None and birth.beyond_rounding:
            trials.distorting.add(factor)
        tokens_alone = (
            factor == "batch_size"
            and birth is not None
            and follows_tokens(context, trials, condition, birth, logs[0])
        )
        finding = contrast_finding(context, trials, factor, cases, birth, compared, tokens_alone)
        stable = not _stabiliser(trials).sources
        if birth is not None and finding.mechanism:
            if stable or birth.beyond_rounding or tokens_alone:
                finding = _pinned(context, trials, finding, birth, cases[0], logs[0])
        if stable and _worth_proving(context, finding, against):
            drawn = yield from _proved(context, trials, condition, finding, left)
        else:
            yield finding
        if not drawn:
            drawn = context.scratch["heatmap"] = True
            yield ("heatmap", heatmap(context.target, trials.ref, compared))


def _pinned(
    context: ProbeContext,
    trials: Trials,
    finding: Finding,
    birth: Birth,
    case: tuple[Condition, str, int],
    clean: ModuleLog,
) -> Finding:
    """The finding as proven if this one module's output, pinned, makes the bits agree again.

    Not asked for rounding beside a fault that keeps runs from repeating: that fault comes first.
    """
    condition, against, row = case
    stabiliser = _stabiliser(trials)
    held = {**stabiliser.pinned, **pins(clean, [birth.path])}
    rows = tuple(i for i, r in enumerate(condition.rows) if r == trials.ref.row)
    run = replace(stabiliser, pinned=held).run(
        _pad(context.target, condition), trials.ref.start, (row,), pin_rows=rows
    )[0]
    wanted = trials.first(against, trials.conditions[against].tested[0])
    if wanted is None or run.digests != wanted.digests:
        return finding
    proof = Evidence(f"runs that differ with the output of {birth.path} pinned", 0, 1, "runs")
    return replace(finding, proven=True, evidence=(*finding.evidence, proof))


def _worth_proving(context: ProbeContext, finding: Finding, against: str) -> bool:
    """The proof lines a run up with the solo run, and one proof is enough: batch size first, then
    padding that is blamed for more than rounding that no token feels."""
    if finding.subject == "batch_size":
        return True
    first = not context.scratch.get("proof")
    return first and finding.subject == "padded_length" and finding.mechanism and against == BASE


def _proved(
    context: ProbeContext,
    trials: Trials,
    condition: Condition,
    finding: Finding,
    left: list[str],
) -> Generator[Event, None, bool]:
    """The finding, sharpened by the operator proof; returns whether that drew the heatmap.

    The proof's sources stand in for the module-level finding of a batch size where interventions
    bear them out; a finding on padding keeps its own rule and gains the operator.
    """
    proof = batch_proof(context, trials.ref, condition, left)
    if proof is None:
        yield finding
        return False
    context.scratch["proof"] = True
    if conclusive(proof) and finding.subject == "batch_size":
        yield from (_with_counts(f, finding) for f in proof_findings(proof, trials.ref))
    else:
        yield _sharpened(finding, proof)
    yield from proof_tables(proof, trials.ref)
    context.scratch["heatmap"] = proof.heatmap is not None
    return proof.heatmap is not None


def _sharpened(finding: Finding, proof: Proof) -> Finding:
    """``finding`` with the operator of its module, and with the proof where it has one."""
    named = with_operator(finding, proof)
    if not conclusive(proof) or named.locus is None or named.locus.op is None:
        return named
    summary = f"{named.summary}; {proof.statement[1]}"
    return replace(named, summary=summary, proven=named.proven or proof.proven)


def _with_counts(proved: Finding, measured: Finding) -> Finding:
    """A source of the proof with the counts of the contrast that it explains, and the finer of
    the two rules: only a longer row tells tokens per launch from batch size."""
    same = measured.locus is not None and proved.locus is not None
    same = same and measured.locus.module == proved.locus.module  # type: ignore[union-attr]
    finer = same and (proved.rule, measured.rule) == ("batch.size-sensitive", "batch.token-count")
    return replace(
        proved,
        rule=measured.rule if finer else proved.rule,
        summary=f"{measured.summary}; {proved.summary}",
        evidence=measured.evidence + proved.evidence,
        subject=measured.subject,
    )


def _stabiliser(trials: Trials) -> Any:
    assert trials.stabiliser is not None
    return trials.stabiliser


def _arms(
    trials: Trials, condition: Condition, against: str, row: int
) -> tuple[tuple[Condition, int], tuple[Condition, int]]:
    first = trials.conditions[against]
    return (first, first.tested[0]), (condition, row)


def _log(context: ProbeContext, trials: Trials, condition: Condition, row: int) -> ModuleLog:
    batch = _pad(context.target, condition)
    pins = tuple(i for i, r in enumerate(condition.rows) if r == trials.ref.row)
    log: ModuleLog = _stabiliser(trials).log(batch, row, pin_rows=pins)
    return log


def _pad(target: LocalTarget, condition: Condition) -> Padded:
    return target.pad(
        condition.rows,
        padding_side=condition.padding_side,
        padded_length=condition.padded_length,
    )


def _named(compared: Comparison) -> Birth | None:
    """The first module beyond rounding if there is one, else the first at all."""
    births = compared.births
    return next((b for b in births if b.beyond_rounding), births[0] if births else None)


def follows_tokens(
    context: ProbeContext, trials: Trials, condition: Condition, birth: Birth, solo: ModuleLog
) -> bool:
    """Does one row with as many tokens as the batch move the same module, at equal inputs?

    The model is causal, so a row's first tokens may not depend on what follows them. If they do,
    tokens per launch is the factor, not the batch size. A matrix multiplication is left out: its
    shape is the token count, in a batch or not, and that is what batch size means to it.
    """
    target, ref = context.target, trials.ref
    limit = getattr(target.model.config, "max_position_embeddings", None)
    if is_gemm(target.model, birth.path) or (limit is not None and condition.tokens > limit):
        return False
    if context.remaining_s() < bench(context).clock.forward_s(2, condition.tokens):
        return False
    long = target.pad([ref.row * len(condition.rows)])
    log = _stabiliser(trials).log(_only_first(long, len(ref.row)), 0, pin_rows=(0,))
    births = compare_logs(solo, log, skip=tuple(_stabiliser(trials).pinned)).births
    return any(b.path == birth.path for b in births)


def _only_first(batch: Padded, tokens: int) -> Padded:
    """``batch`` with only the first ``tokens`` of its row looked at (all of them are run)."""
    return replace(batch, lengths=(tokens,))
