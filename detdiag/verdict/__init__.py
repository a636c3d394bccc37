"""Attribution: pure functions from a :class:`~detdiag.evidence.case.Case` to a report.

Only this package names a layer. Without observations nothing heavy is imported.
"""

from __future__ import annotations

from detdiag.evidence.case import Case
from detdiag.verdict.report_object import Report

__all__ = ["Report", "decide"]


def decide(case: Case) -> Report:
    """The report of a case; :class:`~detdiag.errors.DetdiagError` is never raised here."""
    from detdiag.verdict.remedies import with_remedies

    return with_remedies(_decided(case), case)


def _decided(case: Case) -> Report:
    trials = [o for o in case.observations if o.role == "trial"]
    if not trials:
        from detdiag.verdict.static_only import decide_static

        return decide_static(case)
    from detdiag.verdict.observed import decide_observed

    return decide_observed(case, trials)
