"""Where a live command keeps its record."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path


def default_record(outputs: Sequence[Path]) -> Path:
    """Where the record goes: a ``.ndjson`` output, else beside the first output, else a new file
    in the system's temporary folder."""
    for path in outputs:
        if path.suffix == ".ndjson":
            return path
    for path in outputs:
        if str(path) != "-":
            return path.with_suffix(".ndjson")
    return Path(tempfile.mkdtemp(prefix="detdiag-")) / "record.ndjson"
