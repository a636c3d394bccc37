"""A rule: one sourced fact about what a surface does with a parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from detdiag.evidence.finding import Kind, Severity
from detdiag.rules.condition import Test
from detdiag.rules.versions import Span

HIGH_IGNORED: Final = frozenset(
    {"temperature", "seed", "top_p", "top_k", "topp", "topk", "random_seed", "p", "k"}
)
"""Parameters whose loss leaves sampling uncontrolled, as the surfaces spell them."""

EVIDENCE: Final = frozenset(
    {"source_code", "official_doc", "maintainer_thread", "third_party", "experiment", "none"}
)


@dataclass(frozen=True, slots=True)
class Rule:
    """``when`` is the compiled condition; ``edits`` are the field values that repair the input
    (None removes the field). ``cost`` is given only where the vendor documents one. A rule with
    ``ties_only`` says that sampling acts among exact ties alone. ``verified`` False marks a
    hypothesis: it is reported as such and never accuses."""

    id: str
    surface: str
    kind: Kind
    subject: str
    when: Test
    title: str
    explanation: str
    fix: str
    source: str
    evidence: tuple[str, ...]
    verified: bool
    versions: Span = Span()
    versions_note: str = ""
    edits: Mapping[str, Any] = field(default_factory=dict)
    cost: str = ""
    note: str = ""
    ties_only: bool = False
    outcome: str = ""

    @property
    def severity(self) -> Severity:
        """Fixed by kind and subject; a hypothesis is information only."""
        if not self.verified:
            return "info"
        return severity_of(self.kind, self.subject)


def severity_of(kind: Kind, subject: str) -> Severity:
    """How much a finding of ``kind`` about ``subject`` matters."""
    if kind in ("sampling_still_on", "unsupported_error"):
        return "high"
    if kind == "ignored_parameter":
        leaf = subject.rsplit(".", 1)[-1].lstrip("-").replace("-", "_").lower()
        return "high" if leaf in HIGH_IGNORED else "medium"
    if kind in ("breaks_batch_invariance", "unspecified_default"):
        return "medium"
    return "low" if kind == "best_effort_only" else "info"
