"""What was found out about a case, before it is put into words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from detdiag.evidence.finding import Finding
from detdiag.verdict.analysis import Analysis
from detdiag.verdict.causes import Cause
from detdiag.verdict.contrasts import Contrast
from detdiag.verdict.mechanisms import ArgmaxCount
from detdiag.verdict.report_object import Next
from detdiag.verdict.residue import Pinned
from detdiag.verdict.table import Bundle

if TYPE_CHECKING:
    from detdiag.verdict.endpoint.opening import Open


@dataclass(frozen=True, slots=True)
class Attribution:
    """``causes`` are the strongest first; ``contributors`` only let one of them show."""

    analysis: Analysis
    causes: tuple[Cause, ...]
    contributors: tuple[Contrast, ...] = ()
    findings: tuple[Finding, ...] = ()
    """Static and mechanism findings, those that proved harmless downgraded."""
    confounded: tuple[tuple[Bundle, ...], ...] = ()
    weak: tuple[Contrast, ...] = ()
    held: Pinned | None = None
    argmax: ArgmaxCount = field(default=ArgmaxCount(0, 0, None, 0))
    forks_moved: int = 0
    open: Open | None = None
    """Of a live server: what differs, or hides, without a cause that can be named."""
    further: tuple[Next, ...] = ()
    """What "no difference seen" leaves untested, and how to test it."""
