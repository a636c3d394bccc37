"""From counts and mechanisms to causes: precedence, interplay, and when to abstain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from detdiag.evidence.finding import Finding, Locus
from detdiag.layers import Layer, layer_rank
from detdiag.verdict.analysis import Analysis
from detdiag.verdict.contrast_findings import confidence_of, contrast_evidence, contrast_finding
from detdiag.verdict.contrasts import Contrast, contrast
from detdiag.verdict.mechanisms import EVERYTHING
from detdiag.verdict.outcome import STRENGTH
from detdiag.verdict.report_object import Confidence
from detdiag.verdict.table import LINKED, Bundle, Table

MECHANISM_LAYERS: Final[tuple[Layer, ...]] = ("decode", "moe")
"""Layers that say where a batch contrast arises; they take it over from ``batch``."""


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
