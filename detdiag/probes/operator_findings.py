"""Findings for sources of run-to-run differences."""

from __future__ import annotations

from collections.abc import Iterator

from detdiag.evidence.finding import Evidence, Finding, Locus, Remedy
from detdiag.evidence.record import Event
from detdiag.probes._compare import interval95
from detdiag.probes.conditions import Condition
from detdiag.probes.interface import ProbeContext
from detdiag.probes.places import owner_of, training_modules
from detdiag.probes.proof import (
    conclusive,
    proof_findings,
    proof_tables,
    rerun_proof,
    with_operator,
)
from detdiag.probes.runs import Reference
from detdiag.probes.stabiliser import Source, Stabiliser


def findings(
    context: ProbeContext,
    ref: Reference,
    found: Stabiliser,
    condition: Condition,
    k: int,
    n: int,
    left: list[str],
) -> Iterator[Event]:
    """One finding a source, with its operator where the proof finds one; the proof's own where
    reruns differ and no module could be named."""
    only_state = bool(found.sources) and all(s.kind == "state" for s in found.sources)
    proof = rerun_proof(context, ref, condition, left) if k and not only_state else None
    for source in found.sources:
        if source.kind == "stochastic":
            yield with_operator(_stochastic(context, ref, source, condition), proof)
        elif source.kind == "race":
            yield with_operator(_race(ref, source, condition), proof)
    if k and not found.sources:
        if proof is not None and conclusive(proof):
            yield from proof_findings(proof, ref)
        else:
            yield _unlocated(ref, condition, k, n)
    if proof is not None:
        yield from proof_tables(proof, ref)


def _counts(source: Source, condition: Condition, fixed: str) -> tuple[Evidence, ...]:
    return (
        Evidence(
            "A/A reruns that differ",
            source.k,
            source.n,
            "reruns",
            interval95(source.k, source.n),
            (condition.name,),
        ),
        Evidence(
            f"reruns that differ with {fixed}",
            source.k_fixed,
            source.n_fixed,
            "reruns",
            interval95(source.k_fixed, source.n_fixed),
        ),
    )


def _stochastic(
    context: ProbeContext, ref: Reference, source: Source, condition: Condition
) -> Finding:
    model = context.target.model
    places = list(dict.fromkeys(owner_of(model, m) for m in source.modules))
    training = training_modules(model)
    mode = f"; {len(training)} modules are in training mode" if training else ""
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return Finding(
        layer="operator",
        rule="operator.stochastic",
        outcome="failed",
        severity="high",
        summary=(
            f"{places[0]}{more} draws random numbers in the forward pass "
            f"({', '.join(source.what)}): {source.k} of {source.n} reruns differ, "
            f"{source.k_fixed} of {source.n_fixed} when seeded alike{mode}"
        ),
        evidence=_counts(source, condition, "every generator seeded alike"),
        remedy=Remedy(
            "switch the random operator off: model.eval(), dropout probability 0, no jitter",
            command="model.eval()",
            cost="none",
            verify="detdiag run --model MODEL --only operator",
        ),
        locus=Locus(query=ref.prompt.id, token=0, module=places[0]),
        mechanism=True,
        explains=("repeat",),
        proven=source.proven,
        data={
            "drawing_modules": list(source.modules[:40]),
            "generators": list(source.what),
            "training_modules": training[:40],
        },
    )


def _race(ref: Reference, source: Source, condition: Condition) -> Finding:
    path = source.modules[0]
    birth = source.birth
    size = "" if birth is None else f" ({birth.cls}, {birth.rms_units:.2g} roundoffs rms)"
    proven = source.proven
    return Finding(
        layer="operator",
        rule="operator.race" if proven else "operator.not-repeatable",
        outcome="failed",
        severity="high",
        summary=(
            f"{path}{size} gives other bits at equal inputs, with seeds and state alike: "
            f"{source.k} of {source.n} reruns differ; with its output pinned "
            f"{source.k_fixed} of {source.n_fixed}"
        ),
        evidence=_counts(source, condition, "that module's output pinned"),
        remedy=Remedy(
            "replace the operator there by one with a fixed reduction order",
            command="torch.use_deterministic_algorithms(True)",
            cost="slower kernels; operators without one raise",
            verify="detdiag run --model MODEL --only operator",
        ),
        locus=Locus(query=ref.prompt.id, token=source.token, module=path),
        mechanism=True,
        explains=("repeat",),
        proven=proven,
    )


def _unlocated(ref: Reference, condition: Condition, k: int, n: int) -> Finding:
    return Finding(
        layer="operator",
        rule="operator.not-repeatable",
        outcome="failed",
        severity="high",
        summary=f"{k} of {n} reruns of {condition.name} differ; no module could be named",
        evidence=(
            Evidence("A/A reruns that differ", k, n, "reruns", interval95(k, n), (condition.name,)),
        ),
        locus=Locus(query=ref.prompt.id),
    )
