"""Progress of a score on stderr: a bar with time left on a terminal, a line a block elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any


class Progress:
    """``quiet`` says nothing."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self._bar: Any = None
        self._task: Any = None
        self._runs = 0
        self._said = time.monotonic()

    def start(self, runs: int) -> None:
        self._runs = runs
        if self.quiet or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(),
            TextColumn("time left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("runs", total=runs)
        self._bar.start()

    def at(self, begin: int, end: int, number: int, condition: str) -> None:
        """Round ``number`` of ``condition`` in the block from ``begin`` to ``end`` is done."""
        if self._bar is not None:
            self._bar.update(
                self._task, completed=number, description=f"{condition} {number + 1}/{self._runs}"
            )
        elif not self.quiet and time.monotonic() - self._said > 5:
            self._said = time.monotonic()
            print(f"{condition}: run {number + 1} of {self._runs}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
