"""Against the baseline: sessions that repeat themselves by their answers, others by means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from detdiag.evidence.case import Case
from detdiag.evidence.finding import Finding
from detdiag.verdict.endpoint.restless import Named
from detdiag.verdict.endpoint.routes import Route, drift_finding
from detdiag.verdict.endpoint.samples import Sample
from detdiag.verdict.endpoint.session_shift import ALARM, session_shift, shift_finding
from detdiag.verdict.stats import ALPHA


def sessions(
    case: Case, samples: Sequence[Sample], found: Route, p: float
) -> tuple[list[Named], list[Finding]]:
    """(causes, findings that blame nothing); ``p`` is that of ``found``, corrected."""
    if not found.constant:
        return _shifted(case, samples)
    if p > ALPHA:
        return [], []
    idle = [s for s in samples if s.arm == "idle"]
    before = sum(s.session != "now" for s in idle)
    finding = drift_finding(found, p, before, len(idle) - before)
    return [(with_facts(finding, case, "version.server-facts-changed"), "likely")], []


def _shifted(case: Case, samples: Sequence[Sample]) -> tuple[list[Named], list[Finding]]:
    shift = session_shift(samples)
    if shift is None or shift.p > ALARM:
        return [], []
    finding = with_facts(shift_finding(shift), case, "version.server-facts-changed")
    return ([(finding, "suspected")], []) if shift.far else ([], [finding])


def with_facts(finding: Finding, case: Case, rule: str) -> Finding:
    """What the servers say of themselves otherwise, where they say it."""
    told = next((f.summary for f in case.findings if f.rule == rule), None)
    return finding if told is None else replace(finding, summary=f"{finding.summary}; {told}")
