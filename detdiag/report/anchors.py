"""Where a finding sits in the repository: CI formats need a relative file and a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Final

from detdiag.report.safe import visible

DEFAULT_FILE: Final = "detdiag.toml"
_WHERE: Final = re.compile(r"^(?P<path>.+?)(?::(?P<line>\d+))?(?::\d+)?$", re.S)


def anchor(finding: Mapping[str, Any]) -> tuple[str, int]:
    """``(relative POSIX path, 1-based line)`` of a finding; ``detdiag.toml`` line 1 by default.

    GitHub refuses a whole SARIF file if one result has no physical location
    (github/codeql-action issues 1738 and 2459), and an absolute or upward path never matches a
    file of the repository: such a path keeps its last component only.
    """
    where = finding.get("where")
    match = _WHERE.match(where) if isinstance(where, str) and where else None
    if match is None:
        return DEFAULT_FILE, 1
    line = max(1, int(match["line"] or 1))
    return _relative(visible(match["path"])), line


def _relative(text: str) -> str:
    path = PurePosixPath(PureWindowsPath(text).as_posix())
    windows_drive = PureWindowsPath(text).drive
    if path.is_absolute() or windows_drive or ".." in path.parts:
        return path.name or DEFAULT_FILE
    parts = [part for part in path.parts if part != "."]
    return "/".join(parts) or DEFAULT_FILE
