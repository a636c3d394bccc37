"""Causes that the files alone prove or suggest, beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from detdiag.evidence.case import Case
from detdiag.evidence.finding import Finding
from detdiag.verdict.analysis import Analysis
from detdiag.verdict.causes import Cause
from detdiag.verdict.report_object import Confidence
from detdiag.verdict.residue import failing_controls


def with_static(
    case: Case, static: Sequence[Finding], causes: list[Cause], analysis: Analysis
) -> list[Cause]:
    """Add static findings that stand: proofs on a live target, and differences between given
    files where the outcome differs and nothing measured speaks against them."""
    live = case.target.get("kind") in ("local", "endpoint")
    measured = {c.bundle.layer: c for c in analysis.contrasts}
    for finding in static:
        if any(c.layer == finding.layer for c in causes):
            causes = [_explained_by_file(c, finding) for c in causes]
            continue
        if finding.outcome != "failed":
            continue
        if finding.layer == "config" and (live or finding.kind == "sampling_still_on"):
            unstable = analysis.control_k > 0 or not analysis.control_n
            if live or (unstable and analysis.divergence != "none"):
                causes.append(_static_cause(finding, "likely", live))
        elif live and finding.proven:
            causes.append(_static_cause(finding, "confirmed", True))
        elif analysis.divergence != "none" and finding.layer not in measured and not causes:
            if not failing_controls(analysis) or finding.layer in ("config", "input"):
                causes.append(_static_cause(finding, "suspected", False))
    return causes


def _explained_by_file(cause: Cause, finding: Finding) -> Cause:
    """A contrast of the input says that the bytes matter; the diff of the files says which."""
    if cause.layer != finding.layer or cause.layer != "input" or cause.finding.mechanism:
        return cause
    if cause.rule == finding.rule or cause.finding.data.get("file_rule"):
        return cause
    summary = f"{cause.finding.summary}; {finding.summary}"
    told = replace(
        cause.finding,
        rule=finding.rule,
        summary=summary,
        remedy=finding.remedy,
        data={"file_rule": finding.rule},
    )
    return replace(cause, rule=finding.rule, finding=told)


def _static_cause(finding: Finding, confidence: Confidence, alone: bool) -> Cause:
    return Cause(
        finding.layer,
        finding.rule,
        confidence,
        finding,
        "none",
        stands_alone=alone,
    )
