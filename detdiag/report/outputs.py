"""``-o FILE``: the extension picks the format; several files of one run."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError

EXTENSIONS: Final[dict[str, str]] = {
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".md": "md",
    ".markdown": "md",
    ".sarif": "sarif",
    ".xml": "junit",
    ".txt": "text",
    ".ndjson": "record",
    ".jsonl": "record",
}
_CODEQUALITY: Final = ("codequality.json", "code-quality.json", "gl-code-quality-report.json")


def kind_of(path: str | Path) -> str:
    """The format of an output file; ``*codequality.json`` is GitLab's, ``*.sarif.json`` SARIF.

    Raise :class:`DetdiagError` with the known extensions for any other.
    """
    name = Path(path).name.lower()
    if name.endswith(_CODEQUALITY):
        return "codequality"
    if name.endswith(".sarif.json"):
        return "sarif"
    kind = EXTENSIONS.get(Path(name).suffix)
    if kind is None:
        raise DetdiagError(
            "cannot tell the format from the extension",
            path=path,
            tip="known extensions: " + " ".join(e for e in EXTENSIONS if e != ".htm"),
        )
    return kind


def check_outputs(paths: Sequence[str | Path]) -> None:
    """Refuse unknown extensions before anything is measured."""
    for path in paths:
        if str(path) != "-":
            kind_of(path)


def write_outputs(
    report: Mapping[str, Any],
    paths: Sequence[str | Path],
    *,
    stdout_kind: str = "text",
    lang: str = "en",
    redact: str = "none",
    plotly: str = "embed",
    style: str | None = None,
    record: Path | None = None,
) -> list[tuple[Path, int]]:
    """Write every file of ``paths`` (``-`` is stdout, as ``stdout_kind``).

    ``record`` is the NDJSON that the report was made from, for ``.ndjson`` outputs. All formats
    are rendered before the first file is touched. Returns ``(path, bytes)`` of each file written.
    """
    from detdiag.report.render import render

    options: dict[str, Any] = {"lang": lang, "redact": redact, "plotly": plotly, "style": style}
    made: list[tuple[str | Path, bytes]] = []
    for path in paths:
        kind = stdout_kind if str(path) == "-" else kind_of(path)
        if kind == "record":
            made.append((path, record_bytes(path, record, redact)))
        else:
            made.append((path, render(report, kind, **options).encode()))
    return [(Path(path), len(body)) for path, body in made if put(path, body)]


def put(path: str | Path, body: bytes) -> bool:
    if str(path) == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
        return False
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(body)
        partial.replace(target)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DetdiagError(f"cannot write: {error.strerror}", path=path) from error
    return True


def record_bytes(path: str | Path, record: Path | None, redact: str) -> bytes:
    if record is None:
        raise DetdiagError("there is no record to write here", path=path)
    if redact == "none":
        return record.read_bytes()
    from detdiag.evidence.record import dumps, iter_lines
    from detdiag.report.redact import redactor_for

    lines = [obj for _, obj in iter_lines(record)]
    hide = redactor_for(lines, redact)
    return b"".join(dumps(hide(obj)).encode("utf-8", "surrogatepass") + b"\n" for obj in lines)


def hide_record(record: Path, redact: str) -> str:
    """Rewrite a finished live record as ``redact`` wants it, so that nothing readable is left
    beside redacted reports; returns the SHA-256 of what is there now."""
    from detdiag.evidence.record import sha256_file

    if redact != "none":
        put(record, record_bytes(record, record, redact))
    return sha256_file(record)
