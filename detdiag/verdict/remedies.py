"""What to do about a named rule: the finding's own remedy, else the rule base's."""

from __future__ import annotations

from dataclasses import replace

from detdiag.evidence.finding import Finding, Remedy
from detdiag.rules.verdict_rules import describe
from detdiag.verdict.report_object import Next


def with_remedy(finding: Finding) -> Finding:
    """``finding`` with a remedy, where the rule base knows one and it carries none."""
    if finding.remedy is not None or finding.outcome != "failed":
        return finding
    text = describe(finding.rule)
    if text is None or not text.remedies:
        return finding
    first = text.remedies[0]
    remedy = Remedy(first.action, first.command, first.cost, text.verify, first.source)
    return replace(finding, remedy=remedy)


def next_after(finding: Finding) -> tuple[Next, ...]:
    """The fix as the next step, and how to see that it worked."""
    remedy = with_remedy(finding).remedy
    if remedy is None:
        return ()
    steps = [Next(remedy.action, remedy.command or "")]
    if remedy.verify:
        steps.append(Next("verify the fix", remedy.verify))
    return tuple(steps)
