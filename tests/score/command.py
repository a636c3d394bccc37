"""``detdiag`` called inside the test process: exit code and what it printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return self.err.strip().splitlines()[-1]


def detdiag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: Any
) -> Done:
    from detdiag.cli import main

    monkeypatch.setattr("sys.argv", ["detdiag", *map(str, arguments)])
    capsys.readouterr()
    try:
        main()
        code: Any = 0
    except SystemExit as stop:
        code = stop.code
    found = capsys.readouterr()
    return Done(int(code or 0), found.out, found.err)
