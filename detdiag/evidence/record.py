"""The append-only NDJSON record: one JSON object a line, written as trials finish.

A killed process loses at most the line it was writing: every line is flushed to the operating
system when it is complete, and the reader drops a truncated last line.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.evidence.case import Case, Margin, ProbeStatus
from detdiag.evidence.finding import Finding
from detdiag.evidence.observation import Observation

SCHEMA: Final = "detdiag.record/1"

Event = Observation | Finding | ProbeStatus | Margin | tuple[str, Any]
"""What a probe yields; ``(name, table)`` is a named series for the report."""


def encode(event: Event) -> dict[str, Any]:
    """The record line of one event."""
    if isinstance(event, Observation):
        return {"type": "observation", **event.to_dict()}
    if isinstance(event, Finding):
        return {"type": "finding", "layer": event.layer, **event.to_dict()}
    if isinstance(event, ProbeStatus):
        return {"type": "probe", **event.to_dict()}
    if isinstance(event, Margin):
        return {"type": "margin", **event.to_dict()}
    name, table = event
    return {"type": "series", "name": name, "table": table}


def dumps(obj: Any) -> str:
    """One line of JSON; floats in their shortest exact form, NaN and infinities kept."""
    return json.dumps(obj, ensure_ascii=False, separators=(",", ":"))


class RecordWriter:
    """Appends events to ``path``; ``header`` (target, fingerprint, method) goes first."""

    def __init__(self, path: Path, header: Mapping[str, Any], *, append: bool = False) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if append:
                _drop_partial_line(path)
            self._file = open(path, "ab" if append else "wb")  # noqa: SIM115
        except OSError as error:
            raise DetdiagError(f"cannot write the record: {error.strerror}", path=path) from error
        if not append:
            self.write_line({"type": "header", "schema": SCHEMA, **header})

    def write(self, event: Event) -> None:
        self.write_line(encode(event))

    def write_line(self, obj: Mapping[str, Any]) -> None:
        self._file.write(dumps(obj).encode("utf-8", "surrogatepass") + b"\n")
        self._file.flush()

    def close(self) -> None:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _drop_partial_line(path: Path) -> None:
    """Cut a line that a killed writer left unfinished."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with open(path, "r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


def iter_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(line number, object)``; an unfinished last line is skipped, a broken one raises."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DetdiagError(f"cannot read: {error.strerror}", path=path) from error
    lines = raw.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            obj = json.loads(line.decode("utf-8", "surrogatepass"))
        except ValueError as error:
            if number == len(lines):
                return
            raise DetdiagError(f"not valid JSON: {error}", path=path, line=number) from error
        if not isinstance(obj, dict):
            raise DetdiagError("expected a JSON object", path=path, line=number)
        yield number, obj


def read_record(path: Path) -> Case:
    """Read a record back into a :class:`Case`; raise :class:`DetdiagError` if it is not one.

    Where a layer was started twice (a resumed walk), only its last start counts.
    """
    header: dict[str, Any] | None = None
    probes: dict[str, ProbeStatus] = {}
    events: list[tuple[str, Event]] = []
    running = ""
    for number, obj in iter_lines(path):
        kind = obj.pop("type", None)
        if header is None:
            if kind != "header" or obj.get("schema") != SCHEMA:
                raise DetdiagError(
                    f"expected a record that starts with a {SCHEMA!r} header",
                    path=path,
                    line=number,
                )
            header = obj
            continue
        if kind == "start":
            running = str(obj.get("layer"))
            events = [e for e in events if e[0] != running]
        elif kind == "update":
            header.update(obj)
        elif kind in _DECODERS:
            event = _decoded(kind, obj, path, number)
            if isinstance(event, ProbeStatus):
                probes[event.layer] = event
                running = ""
            else:
                events.append((running, event))
    if header is None:
        raise DetdiagError("the record is empty", path=path)
    kept = [event for _, event in events]
    series = {e[0]: e[1] for e in kept if isinstance(e, tuple)}
    return Case(
        observations=tuple(e for e in kept if isinstance(e, Observation)),
        findings=tuple(e for e in kept if isinstance(e, Finding)),
        probes=tuple(probes.values()),
        margins=tuple(e for e in kept if isinstance(e, Margin)),
        factor_layers=header.get("factor_layers", {}),
        target=header.get("target", {}),
        fingerprint={**header.get("fingerprint", {}), **_mapping(series.pop("fingerprint", {}))},
        method=header.get("method", {}),
        series={**series, "record": {"sha256": sha256_file(path)}},
    )


def _decoded(kind: str, obj: dict[str, Any], path: Path, number: int) -> Event:
    try:
        return _DECODERS[kind](obj, path, number)
    except (KeyError, TypeError) as error:
        raise DetdiagError(f"broken {kind} line: {error}", path=path, line=number) from error


_DECODERS: Final[dict[str, Callable[[dict[str, Any], Path, int], Event]]] = {
    "observation": lambda obj, path, line: Observation.from_dict(obj, path=str(path), line=line),
    "finding": lambda obj, path, line: Finding.from_dict(obj.pop("layer"), obj),
    "probe": lambda obj, path, line: ProbeStatus(**obj),
    "margin": lambda obj, path, line: Margin(**{k: v for k, v in obj.items() if k != "at_risk"}),
    "series": lambda obj, path, line: (str(obj["name"]), obj["table"]),
}


def _mapping(value: Any) -> dict[str, Any]:
    """What the version probe adds to the header's fingerprint."""
    return dict(value) if isinstance(value, Mapping) else {}


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
