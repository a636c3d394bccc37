"""Engine versions: parsing, ordering and the ranges that rules hold in.

One parser serves ``0.8.1``, ``v0.5.3.post1``, ``b6927``, ``4.57.0.dev0``, image tags such as
``v0.5.3-cu126`` and dated API versions such as ``2023-12-01-preview``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from detdiag.errors import DetdiagError

Key = tuple[Any, ...]
"""Sort key of a version: (number tuple, stage, stage number), longer sorts just after."""

OLDEST: Final[Key] = ()
_NUMBER = re.compile(r"^\s*[vVbB]?(\d+(?:\.\d+)*)(.*)$", re.DOTALL)
_DATE = re.compile(r"^\s*(\d{4})-(\d{2})-(\d{2})")
_STAGE = re.compile(r"^[.\-_]?(dev|alpha|beta|a|b|rc|post)[.\-_]?(\d*)", re.IGNORECASE)
_STAGES: Final = {"dev": -4, "alpha": -3, "a": -3, "beta": -2, "b": -2, "rc": -1, "post": 1}
_CLAUSE = re.compile(r"^\s*(>=|<=|==|>|<)\s*(\S+)\s*$")


def version_key(text: str) -> Key:
    """Sort key of ``text``; raises :class:`DetdiagError` when it holds no version."""
    dated = _DATE.match(text)
    if dated:
        return (tuple(int(part) for part in dated.groups()), 0, 0)
    match = _NUMBER.match(text)
    if match is None:
        raise DetdiagError(
            f"cannot read a version from {text!r}", tip="write it as 0.8.1, v0.5.3.post1 or b6927"
        )
    numbers = [int(part) for part in match.group(1).split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    stage = _STAGE.match(match.group(2))
    if stage is None:
        return (tuple(numbers), 0, 0)
    return (tuple(numbers), _STAGES[stage.group(1).lower()], int(stage.group(2) or 0))


@dataclass(frozen=True, slots=True)
class Clause:
    """One comparison of a range: ``op`` is one of ``>= <= == > <``."""

    op: str
    text: str
    key: Key

    def holds(self, key: Key) -> bool:
        """Whether a version with ``key`` satisfies the comparison."""
        if self.op == ">=":
            return key >= self.key
        if self.op == ">":
            return key > self.key
        if self.op == "<":
            return key < self.key
        if self.op == "<=":
            return key <= self.key
        return key == self.key


@dataclass(frozen=True, slots=True)
class Span:
    """A conjunction of clauses; no clause means every version."""

    clauses: tuple[Clause, ...] = ()

    def holds(self, key: Key) -> bool:
        """Whether a version with ``key`` lies in the range."""
        return all(clause.holds(key) for clause in self.clauses)

    def __str__(self) -> str:
        return ",".join(f"{c.op}{c.text}" for c in self.clauses) or "all"


def parse_span(text: str) -> Span:
    """Read ``">=0.8.0,<0.9.0"`` (or ``"all"``); raises :class:`DetdiagError` on bad syntax."""
    if text.strip() in ("", "all"):
        return Span()
    clauses = []
    for part in text.split(","):
        match = _CLAUSE.match(part)
        if match is None:
            raise DetdiagError(f"bad version range {part!r}", tip="write it as '>=0.8.0,<0.9.0'")
        clauses.append(Clause(match.group(1), match.group(2), version_key(match.group(2))))
    return Span(tuple(clauses))


@dataclass(frozen=True, slots=True)
class Epoch:
    """A stretch of versions between two boundaries; ``key`` is a version inside it."""

    key: Key
    since: str | None
    until: str | None

    def text(self) -> str:
        """The stretch in words: ``"before 0.8.0"``, ``"0.8.0 and later"``."""
        if self.since and self.until:
            return f"from {self.since} up to, not including, {self.until}"
        if self.until:
            return f"before {self.until}"
        return f"{self.since} and later" if self.since else "all versions"


def epochs(spans: Iterable[Span]) -> tuple[Epoch, ...]:
    """Cut the version line at every boundary of ``spans``; oldest stretch first.

    Inside one stretch no range changes its answer, so one look per stretch sees everything.
    """
    cuts: dict[Key, str] = {}
    for span in spans:
        for clause in span.clauses:
            if clause.op in (">=", "<", "=="):
                cuts.setdefault(clause.key, clause.text)
            if clause.op in (">", "<=", "=="):
                cuts.setdefault((*clause.key, 1), f"the release after {clause.text}")
    keys = sorted(cuts)
    names: list[str | None] = [None, *(cuts[k] for k in keys), None]
    points: list[Key] = [OLDEST, *keys]
    return tuple(Epoch(key, names[i], names[i + 1]) for i, key in enumerate(points))


def merge_text(chosen: Iterable[int], line: tuple[Epoch, ...]) -> str:
    """Words for a set of stretches, given by index into ``line``."""
    parts = []
    indexes = sorted(set(chosen))
    start = 0
    while start < len(indexes):
        end = start
        while end + 1 < len(indexes) and indexes[end + 1] == indexes[end] + 1:
            end += 1
        first, last = line[indexes[start]], line[indexes[end]]
        parts.append(Epoch(first.key, first.since, last.until).text())
        start = end + 1
    return "; ".join(parts)
