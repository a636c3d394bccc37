"""A proof as events of the record: findings, tables and margins."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from detdiag.evidence.case import Margin
from detdiag.evidence.finding import Evidence, Finding, FindingOutcome, Locus, Remedy
from detdiag.layers import Layer
from detdiag.trace.result import Proof, Source

if TYPE_CHECKING:
    from detdiag.evidence.record import Event

_SCALE = re.compile(r"max|min|abs|norm|quant|scale")
_SHAPE = ("batch_size", "row", "neighbours", "padding_side", "padded_length")


def events(proof: Proof, *, query: str | None = None, margins: bool = True) -> Iterator[Event]:
    """Findings (one for each source, or one that rules the operator layer out), then the tables
    ``proof``, ``operators`` and ``heatmap``, then the margins of the compared positions."""
    yield from findings(proof, query)
    yield ("proof", {"query": query, **proof.to_dict()})
    if proof.operators:
        yield ("operators", list(proof.operators))
    if proof.heatmap is not None:
        yield ("heatmap", {"query": query, **proof.heatmap})
    if margins and proof.margins is not None:
        for p in proof.margins.positions:
            yield Margin(
                query=query or "",
                position=p.position,
                token=str(p.token),
                margin_logits=p.margin_logits,
                margin_ulp=p.margin_ulp,
                noise_logits=p.noise_logits,
                flipped=p.flipped,
            )


def findings(proof: Proof, query: str | None) -> Iterator[Finding]:
    """The findings of :func:`events` alone."""
    if proof.status in ("not_neutral", "not_repeatable", "inputs_differ", "unproven"):
        yield _unclear(proof, query)
    elif proof.status == "equal":
        yield _passed(proof)
    else:
        for source in proof.sources:
            yield _blamed(proof, source, query)


def _passed(proof: Proof) -> Finding:
    layer: Layer = "operator" if proof.mode == "rerun" else "batch"
    rule = "operator.not-repeatable" if proof.mode == "rerun" else "batch.size-sensitive"
    evidence: tuple[Evidence, ...] = ()
    if proof.runs is not None:
        evidence = (Evidence("reruns that differ to the bit", proof.differing, proof.runs, "runs"),)
    return Finding(layer, rule, "passed", proof.statement[0], evidence=evidence)


def _unclear(proof: Proof, query: str | None) -> Finding:
    layer: Layer = "operator" if proof.mode == "rerun" else "batch"
    rule = "operator.not-repeatable" if proof.mode == "rerun" else "batch.size-sensitive"
    outcome: FindingOutcome = "inconclusive"
    text = f"{proof.statement[0]}; {proof.statement[1]}"
    return Finding(layer, rule, outcome, text, locus=Locus(query=query))


def _blamed(proof: Proof, source: Source, query: str | None) -> Finding:
    layer, rule, explains = classify(proof, source)
    token = (proof.first_divergence or {}).get("token")
    conditions = ("alone", "in the batch") if proof.mode == "batch" else ("a run", "another run")
    left = source.after
    evidence = [
        Evidence("largest logit change", source.before.max_abs_logit, unit="logits"),
        Evidence(
            f"left after: {source.fix}", left.max_abs_logit, unit="logits", conditions=conditions
        ),
        Evidence("operator calls touched", source.calls, unit="calls"),
    ]
    if proof.runs is not None:
        evidence.append(
            Evidence("reruns that differ to the bit", proof.differing, proof.runs, "runs")
        )
    where = source.module or "the model"
    end = "bits agree" if left.bit_equal else f"up to {left.max_abs_logit:.3g} logits are left"
    return Finding(
        layer,
        rule,
        "failed",
        f"{source.op} in {where}: {source.fix}, {end}",
        severity="high",
        evidence=tuple(evidence),
        remedy=_remedy(source),
        locus=Locus(query=query, token=token, module=source.module, op=source.op),
        mechanism=True,
        explains=explains,
        proven=proof.proven,
        data={"kind": source.kind, "calls": source.calls, "born": source.born},
    )


def classify(proof: Proof, source: Source) -> tuple[Layer, str, tuple[str, ...]]:
    """Layer, rule and explained factors of a source."""
    if proof.mode == "rerun":
        if source.kind == "state":
            return "batch", "batch.state-carried", ("repeat", "order")
        if source.kind == "stochastic":
            return "operator", "operator.stochastic", ("repeat",)
        return "operator", "operator.not-repeatable", ("repeat",)
    rules = {
        "positions": "batch.padding-positions",
        "shared_value": "batch.shared-scale",
        "branch": "batch.token-count",
        "routing": "batch.neighbour-content",
        "state": "batch.state-carried",
    }
    if source.kind == "routing" and source.experts:
        return "moe", "moe.capacity-drop", _SHAPE
    if source.kind == "shared_value" and not _SCALE.search(source.op):
        return "batch", "batch.neighbour-content", _SHAPE
    if source.kind == "numerics" and _content_matters(proof):
        scale = "quant" in source.op
        return "batch", "batch.shared-scale" if scale else "batch.neighbour-content", _SHAPE
    return "batch", rules.get(source.kind, "batch.size-sensitive"), _SHAPE


def _content_matters(proof: Proof) -> bool:
    """Whether a batch of copies gave other bits than the batch with its neighbours."""
    return any(
        e.method == "constant shape" and not e.remaining.bit_equal for e in proof.interventions
    )


def _remedy(source: Source) -> Remedy | None:
    if source.kind == "numerics":
        return Remedy(
            "run this operator one row at a time, or run the model at batch 1",
            command="with detdiag.remedies.row_invariant(model): model.generate(...)",
            cost="about one forward for each row",
        )
    if source.kind == "positions":
        return Remedy("pass position_ids counted from the attention mask, as generate does")
    if source.kind == "stochastic":
        return Remedy("call model.eval() and remove random draws from the forward")
    if source.kind == "state":
        return Remedy("reset the state before each request")
    return None
