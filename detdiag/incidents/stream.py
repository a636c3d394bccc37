"""A log as blocks of whole lines, plain or compressed, without ever holding the file."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

from detdiag.errors import DetdiagError
from detdiag.evidence.adapters.document import GZIP_MAGIC, ZSTD_MAGIC, Document
from detdiag.evidence.adapters.interface import Adapter
from detdiag.evidence.adapters.registry import adapter_for
from detdiag.evidence.adapters.shape import loads

BLOCK_BYTES: Final = 8 << 20
READ_BYTES: Final = 1 << 18
HEAD_BYTES: Final = 4 << 20
SAMPLE_LINES: Final = 64
WHOLE_FILE: Final = frozenset(
    {"HAR 1.2", "VCR cassette", "OpenAI batch", "curl -v or --trace dump"}
)
"""Formats whose records need the rest of the file (or another file) to be read."""


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of one file: ``data`` where decompressed here, else the byte range to read.
    ``offset`` is the place of the first byte in the decompressed file."""

    path: Path
    offset: int
    size: int
    data: bytes | None = None

    def lines(self) -> Iterator[bytes]:
        """The lines of the block, line ends included."""
        if self.data is not None:
            yield from io.BytesIO(self.data)
            return
        left = self.size
        with open(self.path, "rb", buffering=READ_BYTES) as file:
            file.seek(self.offset)
            for line in file:
                yield line
                left -= len(line)
                if left <= 0:
                    break


def compression(path: Path) -> str:
    """``gzip``, ``zstd`` or ``""``, from the first bytes; raises for a file that cannot be read."""
    try:
        with open(path, "rb") as file:
            head = file.read(4)
    except OSError as error:
        raise DetdiagError(f"cannot read: {error.strerror}", path=path) from error
    if head.startswith(GZIP_MAGIC):
        return "gzip"
    return "zstd" if head.startswith(ZSTD_MAGIC) else ""


def open_log(path: Path) -> IO[bytes]:
    """The decompressed bytes of a log as a stream."""
    kind = compression(path)
    if kind == "gzip":
        return cast("IO[bytes]", gzip.open(path, "rb"))
    if kind == "zstd":
        import zstandard

        raw = zstandard.ZstdDecompressor().stream_reader(open(path, "rb"), read_across_frames=True)
        return cast("IO[bytes]", io.BufferedReader(raw, READ_BYTES))
    return open(path, "rb")


def unreadable(path: Path, error: Exception) -> DetdiagError:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return DetdiagError(f"cannot read: {why}", path=path)


def stream_errors() -> tuple[type[Exception], ...]:
    """What a truncated or damaged stream raises."""
    import zstandard

    return (OSError, EOFError, zlib.error, zstandard.ZstdError)


def line_adapter(path: Path) -> Adapter | None:
    """The adapter of a file that holds one record a line; None for a file read as a whole."""
    head = _head(path)
    lines = [line for line in head.split(b"\n") if line.strip()]
    if len(lines) < 2:
        return None
    cut = len(head) >= HEAD_BYTES and not head.endswith(b"\n")
    rows = [_decoded(line) for line in (lines[:-1] if cut else lines)[:SAMPLE_LINES]]
    objects = [(number, row) for number, row in enumerate(rows, 1) if isinstance(row, dict)]
    if 2 * len(objects) < len(rows) or not objects:
        return None
    adapter = adapter_for(Document(path, rows=tuple(objects)))
    return None if adapter is None or adapter.name in WHOLE_FILE else adapter


def _head(path: Path) -> bytes:
    """The first bytes of a log; of a damaged one as much as can be read."""
    head = bytearray()
    try:
        with open_log(path) as file:
            while len(head) < HEAD_BYTES and (piece := file.read(READ_BYTES)):
                head += piece
    except stream_errors() as error:
        if not head:
            raise unreadable(path, error) from error
    return bytes(head)


def _decoded(line: bytes) -> Any:
    try:
        return loads(line)
    except (ValueError, UnicodeError):
        return None


def blocks(path: Path, size: int = BLOCK_BYTES) -> Iterator[Block]:
    """Blocks of about ``size`` bytes that end at a line end."""
    if compression(path):
        yield from _decompressed(path, size)
        return
    end = path.stat().st_size
    with open(path, "rb") as file:
        start = 0
        while start < end:
            file.seek(min(start + size, end) - 1)
            file.readline()
            stop = file.tell()
            yield Block(path, start, stop - start)
            start = stop


def _decompressed(path: Path, size: int) -> Iterator[Block]:
    """Blocks of a compressed log. Small reads: what a damaged stream gives before it breaks off
    comes first, then the error."""
    offset = 0
    data = bytearray()
    damage: Exception | None = None
    with open_log(path) as file:
        while damage is None:
            try:
                piece = file.read(READ_BYTES)
            except stream_errors() as error:
                damage, piece = error, b""
            if not piece:
                break
            data += piece
            cut = data.rfind(b"\n") + 1 if len(data) >= size else 0
            if cut:
                yield Block(path, offset, cut, bytes(data[:cut]))
                del data[:cut]
                offset += cut
    if data:
        yield Block(path, offset, len(data), bytes(data))
    if damage is not None:
        raise unreadable(path, damage) from damage
