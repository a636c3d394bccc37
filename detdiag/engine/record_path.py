"""Where a live command keeps its record, and what it says of it when interrupted."""

from __future__ import annotations

import contextlib
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def kept_on_interrupt(record: Path, command: str) -> Iterator[None]:
    """On Ctrl-C: say where the record is and how to go on, and leave."""
    try:
        yield
    except KeyboardInterrupt:
        kept = shlex.quote(str(record))
        print(f"kept {kept}; go on with: {command} --resume {kept}", file=sys.stderr)
        raise


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
