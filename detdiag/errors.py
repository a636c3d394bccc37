"""The one error type a user sees; it carries its own exit code."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path


class Exit(IntEnum):
    """Process exit codes (the contract of every command)."""

    CLEAN = 0
    ATTRIBUTED = 1
    USAGE = 2
    INTERNAL = 3
    INCONCLUSIVE = 4
    INTERRUPTED = 130


class DetdiagError(Exception):
    """One clear line for a person: what was wrong, where, and what was expected.

    ``path`` and ``line`` (1-based) locate the fault; ``tip`` names the usual next step.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | Path | None = None,
        line: int | None = None,
        tip: str | None = None,
        code: Exit = Exit.USAGE,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.line = line
        self.tip = tip
        self.code = code

    def __str__(self) -> str:
        where = "" if self.path is None else f"{self.path}:"
        where += "" if self.line is None else f"{self.line}:"
        text = f"{where} {self.message}" if where else self.message
        return f"{text} (tip: {self.tip})" if self.tip else text
