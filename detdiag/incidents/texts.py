"""The second pass: texts of the few records that the report shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detdiag.evidence.adapters.document import read_document
from detdiag.evidence.adapters.interface import Adapter, Exchange
from detdiag.evidence.adapters.registry import ADAPTERS
from detdiag.evidence.adapters.shape import loads
from detdiag.incidents.columns import value_key
from detdiag.incidents.extract import answer, entry_outputs, row_entries
from detdiag.incidents.mine import LogFile
from detdiag.incidents.signature import Keyer
from detdiag.incidents.stream import compression, open_log, stream_errors


@dataclass(frozen=True, slots=True)
class Wanted:
    """One record: which log, where in it, and the keys that tell it from its neighbours."""

    file: int
    offset: int
    line: int
    request: int
    output: int


@dataclass(frozen=True, slots=True)
class Shown:
    """Request and answer of one record, as logged."""

    request: Mapping[str, Any]
    text: str
    source: str


def fetch(logs: Sequence[LogFile], wanted: Iterable[Wanted]) -> dict[Wanted, Shown]:
    """Read the wanted records again; one that cannot be found any more is left out."""
    found: dict[Wanted, Shown] = {}
    by_file: dict[int, list[Wanted]] = {}
    for one in wanted:
        by_file.setdefault(one.file, []).append(one)
    for index, ones in by_file.items():
        log = logs[index]
        adapter = next(a for a in ADAPTERS if a.name == log.format)
        if log.whole:
            found.update(_from_document(log.path, adapter, ones))
        elif compression(log.path):
            found.update(_from_stream(log.path, adapter, ones))
        else:
            found.update(_from_file(log.path, adapter, ones))
    return found


def _from_document(path: Path, adapter: Adapter, ones: Sequence[Wanted]) -> dict[Wanted, Shown]:
    entries = [e for e in adapter.exchanges(read_document(path)) if isinstance(e, Exchange)]
    by_line: dict[int, list[Exchange]] = {}
    for entry in entries:
        by_line.setdefault(entry.line, []).append(entry)
    pairs = ((one, _pick(path, by_line.get(one.line, []), one)) for one in ones)
    return {one: shown for one, shown in pairs if shown is not None}


def _from_file(path: Path, adapter: Adapter, ones: Sequence[Wanted]) -> dict[Wanted, Shown]:
    found: dict[Wanted, Shown] = {}
    with open(path, "rb") as file:
        for one in sorted(ones, key=lambda w: w.offset):
            file.seek(one.offset)
            shown = _from_line(path, adapter, file.readline(), one)
            if shown is not None:
                found[one] = shown
    return found


def _from_stream(path: Path, adapter: Adapter, ones: Sequence[Wanted]) -> dict[Wanted, Shown]:
    waiting: dict[int, list[Wanted]] = {}
    for one in ones:
        waiting.setdefault(one.line, []).append(one)
    found: dict[Wanted, Shown] = {}
    with open_log(path) as file, suppress(*stream_errors()):
        for number, line in enumerate(file, start=1):
            for one in waiting.pop(number, ()):
                shown = _from_line(path, adapter, line, one)
                if shown is not None:
                    found[one] = shown
            if not waiting:
                break
    return found


def _from_line(path: Path, adapter: Adapter, line: bytes, one: Wanted) -> Shown | None:
    try:
        row = loads(line)
    except (ValueError, UnicodeError):
        return None
    entries = row_entries(adapter, one.line, row)
    return _pick(path, [e for e in entries if isinstance(e, Exchange)], one)


def _pick(path: Path, entries: Sequence[Exchange], one: Wanted) -> Shown | None:
    for entry in entries:
        outputs = entry_outputs(entry)
        if entry.request is None or value_key(answer(outputs)) != one.output:
            continue
        if Keyer().key(entry.request) == one.request:
            shown = [o.text if o.text is not None else str(o.token_ids) for o in outputs]
            return Shown(entry.request, "\n".join(shown), f"{path}:{one.line}")
    return None
