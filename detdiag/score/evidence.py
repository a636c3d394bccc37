"""What was recorded: a case folder, a record or a log, with what its reader left out of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.evidence.observation import Observation

_LEFT_OUT: Final = re.compile(r"^(\d+) of \d+ records left out: (.*)$", re.S)


@dataclass(frozen=True, slots=True)
class Evidence:
    """``cached`` and ``left_out`` count records that an adapter gave no observation for."""

    observations: Sequence[Observation]
    target: Mapping[str, Any] = field(default_factory=dict)
    cached: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)


def load_evidence(path: Path) -> Evidence:
    """Read ``path``; raises :class:`DetdiagError` where it holds no evidence."""
    from detdiag.engine import case_folder
    from detdiag.evidence.record import SCHEMA, read_record

    if path.is_dir():
        found = case_folder.load_case(path).observations
        return Evidence(found, {"kind": "case", "name": path.name}, *_left_out(_logs(path)))
    if not path.is_file():
        raise DetdiagError("no such case, record or log", path=path)
    with open(path, "rb") as file:
        is_record = SCHEMA.encode() in file.readline(4096)
    if is_record:
        case = read_record(path)
        return Evidence(case.observations, {**case.target, "record": path.name})
    case = case_folder.load_evidence([path])
    return Evidence(case.observations, case.target, *_left_out([path]))


def _logs(folder: Path) -> list[Path]:
    """The files of a case folder that an adapter reads."""
    from detdiag.engine.case_folder import KNOWN

    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name not in KNOWN and not path.name.startswith(".")
        if path.suffix != ".ndjson"
    ]


def _left_out(paths: Sequence[Path]) -> tuple[dict[str, int], dict[str, int]]:
    """(answers of a response cache, everything else left out), as the adapters count them."""
    from detdiag.evidence.adapters import read_files

    cached: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for found in read_files(paths).values():
        for note in () if found is None else found.notes:
            if (match := _LEFT_OUT.match(note)) is not None:
                (cached if "response cache" in match[2] else others)[match[2]] += int(match[1])
    return dict(cached), dict(others)
