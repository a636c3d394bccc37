"""``detdiag run --endpoint`` inside the test process: exit code, report, what a person saw."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from detdiag.commands import run as run_command
from detdiag.errors import DetdiagError, Exit

PROMPT = "tell me a story about the sea and the lighthouse on the hill w1 w2 w3"


@dataclass(frozen=True)
class Done:
    """``shown`` is everything printed, errors too."""

    code: int
    report: dict[str, Any] | None
    shown: str

    @property
    def verdict(self) -> dict[str, Any]:
        assert self.report is not None, self.shown
        return dict(self.report["verdict"])


def detdiag_run(urls: Sequence[str], folder: Path, *options: str) -> Done:
    """Run the command on ``urls``; the report and the record land in ``folder``."""
    app = typer.Typer()
    run_command.register(app)
    app.callback()(lambda: None)
    page = folder / "report.json"
    page.unlink(missing_ok=True)
    words = [word for url in urls for word in ("--endpoint", url)]
    if "--request" not in options:
        words += ["--prompt", PROMPT]
    if not any(option.endswith(".ndjson") for option in options):
        words += ["-o", str(folder / "record.ndjson")]
    words += ["--model-name", "stub", "-o", str(page), *options]
    done = CliRunner().invoke(app, ["run", *words])
    report = json.loads(page.read_text()) if page.exists() else None
    shown = done.output
    if isinstance(done.exception, DetdiagError):  # cli.main prints it and takes its code
        return Done(int(done.exception.code), report, f"{shown}detdiag: {done.exception}\n")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        if isinstance(done.exception, KeyboardInterrupt):
            return Done(int(Exit.INTERRUPTED), report, shown)
        raise done.exception
    return Done(done.exit_code, report, shown)
