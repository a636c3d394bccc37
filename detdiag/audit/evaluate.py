"""Apply the rules to one unit, at one version or at every stretch of versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from detdiag.audit.engines import BOUNDARIES, Effective, resolve
from detdiag.audit.facts import build_facts
from detdiag.audit.findings import greedy_finding, make_finding
from detdiag.audit.table import parameter_table
from detdiag.audit.unit import Look, Unit
from detdiag.evidence.finding import Finding
from detdiag.rules.condition import fields_of, holds
from detdiag.rules.load import rules_by_surface
from detdiag.rules.model import Rule
from detdiag.rules.versions import Epoch, epochs, parse_span, version_key

_ABOUT_ANSWERS: Final = {
    "ctx.fingerprints_differ",
    "ctx.fingerprint_null",
    "body.system_fingerprint",
}


@dataclass(slots=True)
class Outcome:
    """What one unit yields: findings, the parameter table and the greedy test's last answer."""

    findings: list[Finding] = field(default_factory=list)
    effective: list[dict[str, Any]] = field(default_factory=list)
    decoding: str = "unknown"


def audit_unit(unit: Unit, version: str | None) -> Outcome:
    """Every finding of one unit. Without a version each stretch of versions is judged and the
    answers are merged with their boundaries."""
    rules = [r for name in unit.surfaces for r in rules_by_surface().get(name, ())]
    if unit.response:
        rules = [r for r in rules if _ABOUT_ANSWERS & set(fields_of(r.when))]
    line = _line(unit.engine, rules, version)
    looks = _looks(unit, line)
    outcome = Outcome()
    for rule in rules:
        hits = _hits(rule, looks, line)
        # A hypothesis about some versions says nothing while the version is not known.
        if hits and (rule.verified or len(hits) == len(line)):
            finding = make_finding(rule, unit, looks, hits, line)
            outcome.findings.append(finding)
    newest = looks[-1].effective
    outcome.decoding = newest.decoding
    if unit.response or unit.engine in ("torch", "flashattention", "flashinfer"):
        return outcome
    outcome.effective = parameter_table(unit, looks, line)
    outcome.findings.extend(greedy_finding(unit, looks))
    return outcome


def _line(engine: str, rules: Sequence[Rule], version: str | None) -> tuple[Epoch, ...]:
    if version is not None:
        return (Epoch(version_key(version), version, None),)
    spans = [rule.versions for rule in rules if rule.versions.clauses]
    spans.extend(parse_span(f">={text}") for text in BOUNDARIES.get(engine, ()))
    return epochs(spans)


def _looks(unit: Unit, line: tuple[Epoch, ...]) -> list[Look]:
    """One look per stretch of equal effective parameters, oldest first."""
    looks: list[Look] = []
    before: Effective | None = None
    for index, epoch in enumerate(line):
        inputs = replace(unit.base, key=epoch.key)
        effective = resolve(unit.engine, inputs)
        if before is not None and before == effective:
            looks[-1].epochs.append(index)
            continue
        facts = build_facts(inputs, effective, unit.view, unit.documents, unit.engine, unit.extras)
        looks.append(Look([index], effective, facts))
        before = effective
    return looks


def _hits(rule: Rule, looks: Sequence[Look], line: tuple[Epoch, ...]) -> list[int]:
    hits: list[int] = []
    for look in looks:
        chosen = [i for i in look.epochs if rule.versions.holds(line[i].key)]
        if chosen and holds(rule.when, look.facts.lookup):
            hits.extend(chosen)
    return hits
