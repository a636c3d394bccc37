"""Progress of an endpoint walk on stderr: a bar with time left, or one line a phase."""

from __future__ import annotations

import sys
from typing import Any, cast

from detdiag.engine.progress import Bar, Lines, Quiet
from detdiag.engine.progress import progress_for as layer_progress
from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.record import Event


class PhaseProgress:
    """Phases shown by the displays that local walks use for layers."""

    def __init__(self, inner: Quiet) -> None:
        self._inner = inner
        self._phase = ""

    def started(self, phase: str, share_s: float) -> None:
        self._phase = phase
        if isinstance(self._inner, Lines):
            self._inner.count = 0
            print(f"{phase:<12} started (at most {share_s:.0f} s)", file=sys.stderr, flush=True)
        else:
            self._inner.started(cast(Any, phase), share_s)

    def event(self, event: Event) -> None:
        self._inner.event(cast(Any, self._phase), event)

    def finished(self, phase: str, reason: str, wall_s: float) -> None:
        if isinstance(self._inner, Lines):
            why = f": {reason}" if reason else ""
            print(
                f"{phase:<12} done after {wall_s:.1f} s, {self._inner.count} results{why}",
                file=sys.stderr,
                flush=True,
            )
        elif isinstance(self._inner, Bar):
            self._inner.finished(ProbeStatus(cast(Any, phase), "done", reason, wall_s))

    def close(self) -> None:
        self._inner.close()


def progress_for(quiet: bool, budget_s: float) -> PhaseProgress:
    """The display that fits this stderr."""
    return PhaseProgress(layer_progress(quiet, budget_s))
