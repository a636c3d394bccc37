"""From the module down to the operator: the trace's proof, inside a probe's budget."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

from detdiag.evidence.finding import Finding, Locus
from detdiag.evidence.record import Event
from detdiag.probes.conditions import Condition, base_condition
from detdiag.probes.interface import ProbeContext
from detdiag.probes.runs import Reference, bench
from detdiag.targets.local import model_inputs
from detdiag.trace import ForwardCall, Proof, events, findings, prove_batch, prove_rerun

BATCH_FORWARDS = 4
"""Batched forwards below which a proof is not worth starting; it sheds what does not fit."""


def forward_call(context: ProbeContext, condition: Condition) -> ForwardCall:
    """The forward that :meth:`LocalTarget.forward` makes for ``condition``."""
    batch = context.target.pad(
        condition.rows,
        padding_side=condition.padding_side,
        padded_length=condition.padded_length,
    )
    return ForwardCall(kwargs=model_inputs(context.target.model, batch))


def _pieces(context: ProbeContext, ref: Reference) -> list[str]:
    return [context.target.tokenizer.decode([t]) for t in ref.row]


def batch_proof(
    context: ProbeContext, ref: Reference, condition: Condition, left: list[str]
) -> Proof | None:
    """The proof for a run of another shape that differs from the solo run; None without time."""
    cost = bench(context).clock.forward_s(BATCH_FORWARDS, condition.tokens)
    share = 0.45 if len(condition.rows) > 1 else 0.8  # after padding little is left to run
    if share * context.remaining_s() < cost:
        left.append("operator proof of the batch difference")
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return prove_batch(
            context.target.model,
            forward_call(context, base_condition(ref)),
            forward_call(context, condition),
            budget_s=share * context.remaining_s(),
            tokens=_pieces(context, ref),
            seed=context.plan.seed,
        )


def rerun_proof(
    context: ProbeContext, ref: Reference, condition: Condition, left: list[str]
) -> Proof | None:
    """The proof for reruns that differ; None without the time."""
    cost = bench(context).clock.forward_s(30, condition.tokens)
    if context.remaining_s() < cost:
        left.append("operator proof of the reruns that differ")
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return prove_rerun(
            context.target.model,
            forward_call(context, condition),
            pairs=min(context.plan.repeats, 20),
            budget_s=0.5 * context.remaining_s(),
            tokens=_pieces(context, ref),
            seed=context.plan.seed,
        )


def conclusive(proof: Proof | None) -> bool:
    """Did the proof find sources by intervention?"""
    return proof is not None and proof.status in {"proven", "partial"} and bool(proof.sources)


def proof_findings(proof: Proof, ref: Reference) -> list[Finding]:
    """The proof's own findings under the prompt's id."""
    return list(findings(proof, ref.prompt.id))


def proof_tables(proof: Proof, ref: Reference) -> Iterator[Event]:
    """The tables of the report (``proof``, ``operators``, ``heatmap``), without findings."""
    for event in events(proof, query=ref.prompt.id, margins=False):
        if isinstance(event, tuple):
            yield event


def with_operator(finding: Finding, proof: Proof | None) -> Finding:
    """``finding`` with the operator that the proof found in the same module (or inside it)."""
    if proof is None or finding.locus is None or finding.locus.module is None:
        return finding
    module = finding.locus.module
    for source in proof.sources:
        if source.module == module or source.module.startswith(f"{module}."):
            locus = Locus(finding.locus.query, finding.locus.token, finding.locus.module, source.op)
            return replace(finding, locus=locus)
    return finding
