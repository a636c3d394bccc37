"""A log file decoded once: JSON, JSON lines, CSV, YAML or text, compressed or not."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.evidence.adapters.shape import loads

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_WRAPPERS: Final = ("data", "runs", "observations", "traces", "records", "results", "items", "logs")


@dataclass(frozen=True, slots=True)
class Document:
    """``value`` is the whole file where it is one JSON or YAML value. ``rows`` are its records with
    their 1-based line (JSON lines, CSV) or entry number. ``text`` is set when nothing decoded."""

    path: Path
    value: Any = None
    rows: tuple[tuple[int, Any], ...] = ()
    broken: tuple[tuple[int, str], ...] = ()
    text: str | None = None

    def sample(self, count: int = 64) -> list[Mapping[str, Any]]:
        """The first ``count`` records that are JSON objects."""
        return [row for _, row in self.rows[:count] if isinstance(row, Mapping)]


def read_bytes(path: Path) -> bytes:
    """The file's bytes, gzip and zstd undone; raise :class:`DetdiagError` if that fails."""
    try:
        raw = path.read_bytes()
        if raw.startswith(GZIP_MAGIC):
            return gzip.decompress(raw)
        if raw.startswith(ZSTD_MAGIC):
            return _zstd(raw)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise DetdiagError(f"cannot read: {why}", path=path) from error
    return raw


def _zstd(raw: bytes) -> bytes:
    import zstandard

    try:
        reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        with reader:
            return reader.read()
    except zstandard.ZstdError as error:
        raise OSError(str(error)) from error


def read_document(path: Path) -> Document:
    """Decode a file by its content; what cannot be decoded comes back as text."""
    raw = read_bytes(path)
    head = raw.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if head in (b"{", b"["):
        return _json(path, raw)
    shown = raw.decode("utf-8-sig", "replace")
    if re.search(r"^(http_)?interactions:", shown, re.MULTILINE):
        value = _yaml(path, shown)
        return Document(path, value=value, rows=_rows(value), text=shown)
    rows = _csv(shown)
    return Document(path, rows=rows, text=shown)


def _json(path: Path, raw: bytes) -> Document:
    try:
        value = loads(raw)
        return Document(path, value=value, rows=_rows(value))
    except (ValueError, UnicodeError) as error:
        why = str(error)
    rows, broken = _json_lines(raw)
    if len(broken) > len(rows):
        values = _json_values(raw.decode("utf-8-sig", "replace"))
        if values:
            return Document(path, rows=tuple(values))
    if rows:
        return Document(path, rows=tuple(rows), broken=tuple(broken))
    return Document(
        path, broken=((1, f"not valid JSON: {why}"),), text=raw.decode("utf-8", "replace")
    )


def _json_lines(raw: bytes) -> tuple[list[tuple[int, Any]], list[tuple[int, str]]]:
    rows: list[tuple[int, Any]] = []
    broken: list[tuple[int, str]] = []
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            rows.append((number, loads(line)))
        except (ValueError, UnicodeError) as error:
            broken.append((number, f"not valid JSON: {error}"))
    return rows, broken


def _json_values(shown: str) -> list[tuple[int, Any]]:
    """JSON objects written one after the other over several lines, as console exporters do."""
    decoder = json.JSONDecoder()
    found: list[tuple[int, Any]] = []
    place, line = 0, 1
    while place < len(shown):
        if shown[place] in " \t\r\n,":
            line += shown[place] == "\n"
            place += 1
            continue
        try:
            value, end = decoder.raw_decode(shown, place)
        except (ValueError, RecursionError):
            break
        found.append((line, value))
        line += shown.count("\n", place, end)
        place = end
    return found if any(isinstance(value, dict) for _, value in found) else []


def _rows(value: Any) -> tuple[tuple[int, Any], ...]:
    """Records of one JSON value: an array, the array inside an export's wrapper, or itself."""
    if isinstance(value, list):
        return tuple(enumerate(value, start=1))
    if isinstance(value, Mapping):
        for name in _WRAPPERS:
            inner = value.get(name)
            if isinstance(inner, list) and inner and all(isinstance(v, Mapping) for v in inner):
                return tuple(enumerate(inner, start=1))
        return ((1, value),)
    return ()


def _yaml(path: Path, shown: str) -> Any:
    import yaml

    try:
        return yaml.load(shown, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        raise DetdiagError(
            f"not valid YAML: {getattr(error, 'problem', None) or type(error).__name__}",
            path=path,
            line=None if line is None else line + 1,
        ) from error


def _csv(shown: str) -> tuple[tuple[int, Any], ...]:
    """Rows of a CSV export whose header names a reply; other text has no rows."""
    header = shown.split("\n", 1)[0].lower()
    if "," not in header or not ("output" in header or "response" in header):
        return ()
    return tuple(_csv_rows(shown))


def _csv_rows(shown: str) -> Iterator[tuple[int, Any]]:
    reader = csv.DictReader(io.StringIO(shown, newline=""))
    try:
        for row in reader:
            yield (
                reader.line_num,
                {k: v for k, v in row.items() if k is not None and v not in (None, "")},
            )
    except csv.Error:
        return
