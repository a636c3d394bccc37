"""Reading logs into columns: block by block, on every core, in memory that does not grow with the
size of the bodies."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from detdiag.errors import DetdiagError
from detdiag.evidence.adapters.document import read_document
from detdiag.evidence.adapters.interface import Adapter
from detdiag.evidence.adapters.recognise import describe
from detdiag.evidence.adapters.registry import ADAPTERS, adapter_for
from detdiag.incidents.columns import MAX_BROKEN, Columns
from detdiag.incidents.extract import Extractor
from detdiag.incidents.stream import Block, blocks, line_adapter

BATCH_LINES: Final = 32
"""Decoded records at a time: few enough that they stay in the cache of a core."""
POOL_BYTES: Final = 24 << 20
"""Below this a process pool costs more than it saves."""

Progress = Callable[[Path, int, int], None]
"""Called with the file, the (decompressed) bytes of it that are done and the records so far."""

Work = tuple[Block, str]
Apply = Callable[[Callable[[Work], Columns], Iterable[Work]], Iterable[Columns]]


@dataclass(slots=True)
class LogFile:
    """What one log held. ``columns`` are its blocks in order and ``bases`` the lines before each.
    ``whole`` says that it was read as one document; ``damage`` why reading stopped early."""

    path: Path
    format: str
    whole: bool
    columns: list[Columns] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    broken: list[tuple[int, str]] = field(default_factory=list)
    broken_count: int = 0
    lines: int = 0
    records: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    inert: dict[str, int] = field(default_factory=dict)
    damage: str | None = None

    def add(self, found: Columns) -> None:
        """Append a block; broken lines get the numbers that they have in the file."""
        room = MAX_BROKEN - len(self.broken)
        self.broken += [(line + self.lines, why) for line, why in found.broken[:room]]
        self.bases.append(self.lines)
        self.columns.append(found)
        self.broken_count += found.broken_count
        self.lines += found.lines
        self.records += found.records
        for mine, theirs in ((self.left_out, found.left_out), (self.inert, found.inert)):
            for name, count in theirs.items():
                mine[name] = mine.get(name, 0) + count


def read_logs(
    paths: Sequence[Path], *, jobs: int | None = None, progress: Progress | None = None
) -> list[LogFile]:
    """Read every log; raise :class:`DetdiagError` for one that cannot be read or recognised.

    A file that breaks off in the middle keeps what was read and says so in ``damage``.
    """
    adapters = [(path, line_adapter(path)) for path in paths]
    tell = progress or (lambda path, done, records: None)
    workers = jobs or _cores()
    total = sum(path.stat().st_size for path, adapter in adapters if adapter is not None)
    if workers <= 1 or total < POOL_BYTES:
        return [_read(path, adapter, map, tell) for path, adapter in adapters]
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    with ProcessPoolExecutor(workers, multiprocessing.get_context(method)) as pool:
        apply = _windowed(pool, 2 * workers)
        return [_read(path, adapter, apply, tell) for path, adapter in adapters]


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _windowed(pool: ProcessPoolExecutor, window: int) -> Apply:
    """An ordered map with at most ``window`` blocks in flight: a pool's own map reads ahead."""

    def apply(work: Callable[[Work], Columns], items: Iterable[Work]) -> Iterator[Columns]:
        waiting: deque[Future[Columns]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= window:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    return apply


def _read(path: Path, adapter: Adapter | None, apply: Apply, tell: Progress) -> LogFile:
    if adapter is None:
        return _read_whole(path)
    log = LogFile(path, adapter.name, whole=False)
    done = 0
    try:
        for found in apply(read_block, ((block, adapter.name) for block in blocks(path))):
            log.add(found)
            done += found.size
            tell(path, done, log.records)
    except DetdiagError as error:
        if not log.columns:
            raise
        log.damage = error.message
    return log


def read_block(work: Work) -> Columns:
    """Columns of one block; lines are numbered from 1 inside the block."""
    block, name = work
    adapter = next(one for one in ADAPTERS if one.name == name)
    columns = Columns(size=block.size)
    extractor = Extractor(columns, adapter)
    with _without_gc():
        offset, number = block.offset, 0
        for some in _batched(block.lines(), BATCH_LINES):
            extractor.read(some, number + 1, offset)
            number += len(some)
            offset += sum(map(len, some))
        columns.lines = number
    return columns


@contextmanager
def _without_gc() -> Iterator[None]:
    """Decoded JSON has no cycles, and millions of containers make the collector run for nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _batched(lines: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    rest = iter(lines)
    while some := list(islice(rest, size)):
        yield some


def _read_whole(path: Path) -> LogFile:
    """HAR, cassettes, batches and single JSON values: the document has to fit in memory."""
    document = read_document(path)
    adapter = adapter_for(document)
    if adapter is None:
        known = ", ".join(one.name for one in ADAPTERS)
        raise DetdiagError(
            f"no log format recognised: {describe(document)}",
            path=path,
            tip=f"known formats: {known}",
        )
    columns = Columns()
    for line, why in document.broken:
        columns.add_broken(line, why)
    extractor = Extractor(columns, adapter)
    for entry in adapter.exchanges(document):
        extractor.add_entry(entry)
    extractor.flush()
    columns.lines = max((line for line, _ in document.rows), default=0)
    log = LogFile(path, adapter.name, whole=True)
    log.add(columns)
    return log
