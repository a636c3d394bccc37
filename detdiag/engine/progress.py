"""Progress on stderr: a bar with time left on a terminal, one line a probe elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.record import Event
from detdiag.layers import Layer


class Quiet:
    """Says nothing."""

    def started(self, layer: Layer, share_s: float) -> None:
        pass

    def event(self, layer: Layer, event: Event) -> None:
        pass

    def finished(self, status: ProbeStatus) -> None:
        pass

    def close(self) -> None:
        pass


class Lines(Quiet):
    """One line when a probe starts and one when it ends, for logs."""

    def __init__(self) -> None:
        self.count = 0

    def started(self, layer: Layer, share_s: float) -> None:
        self.count = 0
        print(f"{layer:<9} started (at most {share_s:.0f} s)", file=sys.stderr, flush=True)

    def event(self, layer: Layer, event: Event) -> None:
        self.count += 1

    def finished(self, status: ProbeStatus) -> None:
        why = f": {status.reason}" if status.reason else ""
        print(
            f"{status.layer:<9} {status.state.replace('_', ' ')} after {status.wall_s or 0:.1f} s, "
            f"{self.count} results{why}",
            file=sys.stderr,
            flush=True,
        )


class Bar(Quiet):
    """One bar over the budget; ``time left`` is what the budget still allows."""

    def __init__(self, budget_s: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress: Any = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(),
            TextColumn("at most"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("loading", total=budget_s)
        self._start = time.monotonic()
        self._events = 0
        self._progress.start()

    def _tick(self, text: str) -> None:
        self._progress.update(
            self._task, completed=time.monotonic() - self._start, description=text
        )

    def started(self, layer: Layer, share_s: float) -> None:
        self._events = 0
        self._tick(layer)

    def event(self, layer: Layer, event: Event) -> None:
        self._events += 1
        self._tick(f"{layer}: {self._events} results")

    def finished(self, status: ProbeStatus) -> None:
        self._tick(f"{status.layer} {status.state.replace('_', ' ')}")

    def close(self) -> None:
        self._progress.stop()


def progress_for(quiet: bool, budget_s: float) -> Quiet:
    """The progress display that fits this stderr."""
    if quiet:
        return Quiet()
    return Bar(budget_s) if sys.stderr.isatty() else Lines()
