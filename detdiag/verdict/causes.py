"""From counts and mechanisms to causes: precedence, interplay, and when to abstain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from detdiag.evidence.finding import Evidence, Finding, Locus
from detdiag.layers import LAYERS, Layer, layer_rank
from detdiag.verdict.analysis import Analysis
from detdiag.verdict.contrasts import Contrast, contrast
from detdiag.verdict.mechanisms import EVERYTHING
from detdiag.verdict.outcome import STRENGTH
from detdiag.verdict.report_object import Confidence
from detdiag.verdict.stats import ALPHA, WEAK_ALPHA, wilson
from detdiag.verdict.table import LINKED, Bundle, Table

MECHANISM_LAYERS: Final = ("decode", "moe")
"""Layers that say where a batch contrast arises; they take it over from ``batch``."""

_RULES: Final[dict[str, str]] = {
    "batch_size": "batch.size-sensitive",
    "concurrency": "batch.load-sensitive",
    "in_flight_tokens": "batch.load-sensitive",
    "neighbours": "batch.neighbour-content",
    "row": "batch.row-position",
    "padding_side": "batch.padding-sensitive",
    "padded_length": "batch.padding-sensitive",
    "cached_tokens": "batch.prefix-reuse",
    "prefix_cache": "batch.prefix-reuse",
    "order": "batch.state-carried",
    "process": "operator.per-process",
    "sampler": "decode.sampler-path",
    "tie_break": "decode.exact-tie",
    "neighbour_params": "decode.neighbour-parameters",
    "router_dtype": "moe.router-precision",
    "expert_capacity": "moe.capacity-drop",
    "prompt_digest": "input.bytes-differ",
    "prompt_token_ids": "input.token-ids-differ",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause with the finding that shows it; ``contrasts`` are what it explains."""

    layer: Layer
    rule: str
    confidence: Confidence
    finding: Finding
    divergence: str
    contrasts: tuple[Contrast, ...] = ()
    stands_alone: bool = False
    """A proof that needs no diverging output (bytes that differ from a signed-off baseline)."""

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        return tuple(c.bundle for c in self.contrasts)


def rule_of(bundle: Bundle, table: Table) -> str:
    """The dotted rule that a flipping bundle stands for."""
    if bundle.layer == "input" and bundle.factors[0] in table.mediators.get("prompt_token_ids", ()):
        return "input.token-ids-differ"
    for factor in bundle.factors:
        if factor == "neighbours" and "dynamic" in str(
            table.constant.get("activation_quantisation", "")
        ):
            return "batch.shared-scale"
        if factor in _RULES:
            return _RULES[factor]
    return f"{bundle.layer}.{bundle.factors[0].replace('_', '-')}-changes-output"


def shown(found: Contrast) -> bool:
    """Is this contrast strong enough to be blamed?

    Bytes or token ids that differ are visible in themselves, so an input contrast needs only
    controls that repeat; any other needs Holm-adjusted p at or below WEAK_ALPHA, or ALPHA where
    its own control fails.
    """
    if not found.k:
        return False
    visible = found.bundle.layer == "input" and found.mode == "location"
    if visible and found.control_n and not found.control_k:
        return True
    return found.p_holm <= (ALPHA if found.control_k else WEAK_ALPHA)


def one_off(found: Contrast) -> bool:
    """A stray answer under a label that occurs once: chance alone puts it there once in as many
    runs as there are, and a log has many labels. One run cannot show that its arm repeats."""
    return found.bundle.layer != "input" and found.smallest_arm < 2 and found.p_holm > ALPHA


def confidence_of(found: Contrast) -> Confidence:
    """ "confirmed": both arms repeat and the change goes with the factor alone; "likely" where a
    control is noisy; "suspected" between ALPHA and WEAK_ALPHA."""
    if found.p_holm > ALPHA and found.bundle.layer != "input":
        return "suspected"
    if found.mode == "location" and found.control_k:
        return "likely"
    return "confirmed" if found.control_n and found.p_holm <= ALPHA else "likely"


def contrast_finding(found: Contrast, table: Table) -> Finding:
    """The failed finding of a contrast that flips."""
    names = found.bundle.label
    flipped, compared = found.queries
    where = f"{flipped} of {compared} prompts" if compared > 1 else f"{found.k} of {found.n} pairs"
    if found.mode == "location":
        text = f"{where} change with {names} alone ({found.k} of {found.n} matched pairs)"
    elif found.mode == "repeatability":
        text = (
            f"repeats differ in {found.k} of {found.n} runs under {names} "
            f"{_arms(found.noisy_arms)} and in 0 of {found.control_n} under "
            f"{_arms(found.quiet_arms)}"
        )
    else:
        text = (
            f"{found.k} of {found.n} runs leave the answer that {names} {_arms(found.quiet_arms)} "
            f"gives in {found.control_n - found.control_k} of {found.control_n}"
        )
    control = (
        f"; control: {found.control_k} of {found.control_n} repeats differ"
        if found.mode == "location"
        else ""
    )
    size = "" if found.max_nat is None else f"; largest change {found.max_nat:.3g} nat"
    return Finding(
        layer=found.bundle.layer,  # type: ignore[arg-type]
        rule=rule_of(found.bundle, table),
        outcome="failed",
        severity="high",
        subject=found.bundle.factors[0],
        summary=text + control + size,
        evidence=contrast_evidence(found),
    )


def _arms(arms: Sequence[str]) -> str:
    shown_arms = " / ".join(arm.replace('"', "") for arm in arms[:4])
    return shown_arms + (" ..." if len(arms) > 4 else "")


def contrast_evidence(found: Contrast) -> tuple[Evidence, ...]:
    unit = "matched pairs" if found.mode == "location" else "runs"
    rows = [
        Evidence(
            f"outcome changes with {found.bundle.label}", found.k, found.n, unit,
            wilson(found.k, found.n), tuple(a[:80] for a in found.arms[:8]),
        ),
        Evidence(
            "control: identical conditions differ", found.control_k, found.control_n, "pairs",
            wilson(found.control_k, found.control_n),
        ),
        Evidence(f"p ({found.mode}, Holm)", float(f"{found.p_holm:.3g}")),
    ]  # fmt: skip
    return tuple(rows)


def conditional(
    table: Table, target: Bundle, given: Bundle, level: str
) -> dict[str, tuple[int, int]]:
    """(k, n) of ``target``'s contrast inside each value of ``given``."""
    out = {}
    for value, rows in table.frame.groupby(given.column, sort=True):
        found = contrast(replace(table, frame=rows), target, level)  # type: ignore[arg-type]
        if found is not None:
            out[str(value)] = (found.k, found.n)
    return out


def interplay(analysis: Analysis, a: Bundle, b: Bundle) -> bool:
    """Do both need each other: some value of each silences the other's contrast entirely?"""
    one = conditional(analysis.table, a, b, analysis.level)
    two = conditional(analysis.table, b, a, analysis.level)
    return _silenced(one) and _silenced(two)


def _silenced(counts: dict[str, tuple[int, int]]) -> bool:
    return any(n and not k for k, n in counts.values()) and any(k for k, _ in counts.values())


def settle_interplay(
    analysis: Analysis, found: Sequence[Contrast]
) -> tuple[list[Contrast], list[Contrast]]:
    """Split contrasts that flip into causes and contributors.

    Where two need each other the earlier layer is the cause, unless the later one says where
    (decode, moe): then it is.
    """
    causes = sorted(found, key=lambda c: (layer_rank(c.bundle.layer), c.p))
    contributors: list[Contrast] = []
    for first in list(causes):
        for second in list(causes):
            if first not in causes or second not in causes or first is second:
                continue
            if layer_rank(first.bundle.layer) >= layer_rank(second.bundle.layer):
                continue
            if interplay(analysis, first.bundle, second.bundle):
                loser = first if second.bundle.layer in MECHANISM_LAYERS else second
                causes.remove(loser)
                contributors.append(loser)
    return causes, contributors


def explains(finding: Finding, factors: Iterable[str]) -> bool:
    """Does this mechanism explain a difference under one of ``factors`` (linked names count)?"""
    if finding.explains == EVERYTHING:
        return True
    wanted = set(factors)
    for names in LINKED.values():
        if wanted & set(names):
            wanted |= set(names)
    return bool(wanted & set(finding.explains))


def merge(
    contrast_causes: Sequence[Contrast],
    mechanisms: Sequence[Finding],
    table: Table,
    divergence: str,
) -> list[Cause]:
    """Join contrasts with the mechanisms that explain them; what is left stands on its own.

    A decode or moe mechanism takes a batch or operator contrast over; a mechanism of the same
    layer names its rule and place; otherwise the earlier layer keeps the difference.
    """
    used: dict[int, list[Contrast]] = {}
    causes: list[Cause] = []
    for found in contrast_causes:
        index = _best_mechanism(found, mechanisms)
        if index is None:
            causes.append(contrast_cause(found, table))
        else:
            used.setdefault(index, []).append(found)
    for index, mechanism in enumerate(mechanisms):
        if _overruled(mechanism, mechanisms) and index not in used:
            continue
        causes.append(_mechanism_cause(mechanism, used.get(index, []), table, divergence))
    return _one_per_rule(causes)


def contrast_cause(found: Contrast, table: Table) -> Cause:
    finding = contrast_finding(found, table)
    return Cause(finding.layer, finding.rule, confidence_of(found), finding, found.kind, (found,))


def _best_mechanism(found: Contrast, mechanisms: Sequence[Finding]) -> int | None:
    rank = layer_rank(found.bundle.layer)
    fitting = [
        (i, m)
        for i, m in enumerate(mechanisms)
        if explains(m, found.bundle.factors)
        and (
            m.layer == found.bundle.layer
            or (m.layer in MECHANISM_LAYERS and layer_rank(m.layer) > rank)
        )
    ]
    if found.bundle.layer in ("config", "input", "version"):
        fitting = [(i, m) for i, m in fitting if m.layer == found.bundle.layer]
    if not fitting:
        return None
    return max(fitting, key=lambda im: (im[1].layer in MECHANISM_LAYERS, im[1].proven, -im[0]))[0]


def _overruled(mechanism: Finding, mechanisms: Sequence[Finding]) -> bool:
    """A failing control explained twice goes to state carried between calls (batch) first, then
    to decode or moe at equal inputs, then to the operator. A batch effect is no cause of its own
    beside a proven routing fault that leaves nothing but rounding when it is pinned."""
    if mechanism.layer == "batch":
        return any(
            m.proven
            and m.layer in MECHANISM_LAYERS
            and m.data.get("leaves_only_rounding")
            and set(mechanism.explains) <= set(m.explains)
            for m in mechanisms
        )
    if "repeat" not in mechanism.explains or mechanism.layer != "operator":
        return False
    others = [m for m in mechanisms if m is not mechanism and "repeat" in m.explains]
    return any(m.layer == "batch" or (m.layer in MECHANISM_LAYERS and m.proven) for m in others)


def _mechanism_cause(
    mechanism: Finding, found: Sequence[Contrast], table: Table, divergence: str
) -> Cause:
    confidence: Confidence = "confirmed" if mechanism.proven else "likely"
    if found and not mechanism.proven:
        confidence = min((confidence_of(c) for c in found), key=_CONFIDENCE_ORDER.index)
    evidence = mechanism.evidence + tuple(e for c in found for e in contrast_evidence(c))
    kinds: list[str] = [c.kind for c in found] or [divergence]
    return Cause(
        mechanism.layer,
        mechanism.rule,
        confidence,
        replace(mechanism, evidence=evidence),
        max(kinds, key=lambda kind: STRENGTH[kind]),
        tuple(found),
        stands_alone=mechanism.proven,
    )


_CONFIDENCE_ORDER: Final[tuple[Confidence, ...]] = ("confirmed", "likely", "suspected")


def _one_per_rule(causes: Sequence[Cause]) -> list[Cause]:
    kept: dict[tuple[str, str], Cause] = {}
    for cause in causes:
        key = (cause.layer, cause.rule)
        if key not in kept:
            kept[key] = cause
        else:
            kept[key] = replace(kept[key], contrasts=kept[key].contrasts + cause.contrasts)
    return list(kept.values())


def ranked(causes: Sequence[Cause]) -> list[Cause]:
    """Strongest first: visible divergence or proof before bitwise-only, then the walk's order."""
    return sorted(
        causes,
        key=lambda c: (
            c.confidence == "suspected",
            c.divergence in ("none", "bitwise") and not c.stands_alone,
            _CONFIDENCE_ORDER.index(c.confidence),
            layer_rank(c.layer),
        ),
    )


def first_locus(causes: Sequence[Cause]) -> Locus | None:
    """Where the named cause starts; where it has no place (sampling, say), where the next does."""
    places = [c.finding.locus for c in causes if c.finding.locus is not None]
    return next((p for p in places if p.module is not None), places[0] if places else None)


assert set(MECHANISM_LAYERS) <= set(LAYERS)
