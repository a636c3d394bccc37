"""All records of all logs as one set of arrays, grouped by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detdiag.incidents.columns import ABSENT, NAMES, NUMBERS
from detdiag.incidents.mine import LogFile

Ints = NDArray[np.int64]
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Arrays of one length; ``words`` decodes the name columns. ``duplicates`` counts records that
    were dropped because their reply id, request and answer were seen before."""

    columns: dict[str, Array]
    words: dict[str, list[str]]
    duplicates: int = 0

    def __len__(self) -> int:
        return len(self.columns["request"])


@dataclass(frozen=True, slots=True)
class Groups:
    """Records sorted by request and answer. Group ``g`` is ``order[starts[g]:starts[g + 1]]``;
    ``distinct`` and ``deviating`` have one entry a group."""

    order: Ints
    starts: Ints
    distinct: Ints
    deviating: Ints

    def members(self, group: int) -> Ints:
        return self.order[self.starts[group] : self.starts[group + 1]]

    @property
    def sizes(self) -> Ints:
        return np.diff(self.starts)


def tabulate(logs: Sequence[LogFile]) -> Table:
    """Concatenate the blocks of all logs; each block is let go as it is copied."""
    blocks = [
        (i, base, c)
        for i, log in enumerate(logs)
        for base, c in zip(log.bases, log.columns, strict=True)
    ]
    columns: dict[str, Array] = {}
    for name, code in NUMBERS.items():
        columns[name] = np.concatenate(
            [np.frombuffer(c.numbers[name], dtype=np.dtype(code)) for _, _, c in blocks]
            or [np.zeros(0, dtype=np.dtype(code))]
        )
    sizes = [len(c.numbers["request"]) for _, _, c in blocks]
    columns["line"] = columns["line"].astype(np.int64) + np.repeat(
        [b for _, b, _ in blocks], sizes
    ).astype(np.int64)
    columns["file"] = np.repeat([i for i, _, _ in blocks], sizes).astype(np.int32)
    words: dict[str, list[str]] = {}
    for name in NAMES:
        columns[name], words[name] = _joined([(c.codes[name], c.words[name]) for _, _, c in blocks])
    return _without_duplicates(Table(columns, words))


def _joined(parts: Sequence[tuple[Any, dict[str, int]]]) -> tuple[Array, list[str]]:
    """One code table over blocks that each have their own."""
    table: dict[str, int] = {"": 0}
    arrays = []
    for codes, words in parts:
        to_common = np.array([table.setdefault(w, len(table)) for w in words], dtype=np.int32)
        arrays.append(to_common[np.frombuffer(codes, dtype=np.uint32)])
    return np.concatenate(arrays or [np.zeros(0, dtype=np.int32)]), list(table)


def _without_duplicates(table: Table) -> Table:
    """Drop replies of a cache and calls logged twice: same reply id, request and answer. Where one
    id comes with two answers the server's ids say nothing, and nothing is dropped."""
    ids = table.columns["reply_id"]
    marked = np.flatnonzero(ids)
    if not len(marked):
        return table
    request, answer, reply = (table.columns[n][marked] for n in ("request", "output", "reply_id"))
    order = np.lexsort((marked, answer, request, reply))
    same_id = reply[order][1:] == reply[order][:-1]
    same = same_id & (request[order][1:] == request[order][:-1])
    same &= answer[order][1:] == answer[order][:-1]
    if bool(np.any(same_id & ~same)) or not bool(np.any(same)):
        return table
    keep = np.ones(len(table), dtype=bool)
    keep[marked[order[1:][same]]] = False
    columns = {name: column[keep] for name, column in table.columns.items()}
    return Table(columns, table.words, int(np.count_nonzero(~keep)))


def group(table: Table) -> Groups:
    """Group by request; count distinct answers and those off the most frequent one."""
    request, answer = table.columns["request"], table.columns["output"]
    order = np.lexsort((np.arange(len(table)), answer, request)).astype(np.int64)
    request, answer = request[order], answer[order]
    new_request = _changes(request)
    new_answer = new_request | _changes(answer)
    starts = np.append(np.flatnonzero(new_request), len(order)).astype(np.int64)
    runs = np.append(np.flatnonzero(new_answer), len(order)).astype(np.int64)
    first_run = np.searchsorted(runs, starts)
    distinct = np.diff(first_run)
    largest = (
        np.maximum.reduceat(np.diff(runs), first_run[:-1]) if len(order) else np.zeros(0, np.int64)
    )
    return Groups(order, starts, distinct, np.diff(starts) - largest)


def _changes(values: Array) -> NDArray[np.bool_]:
    out = np.ones(len(values), dtype=bool)
    out[1:] = values[1:] != values[:-1]
    return out


def recorded(table: Table, factor: str) -> NDArray[np.bool_]:
    """Where a factor's column holds a value."""
    column = table.columns[factor]
    if factor in NAMES:
        return column != 0
    if factor == "cached":
        return column != ABSENT
    return np.isfinite(column)
