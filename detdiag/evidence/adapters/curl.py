"""curl dumps: ``-v`` (headers, response body between the marks) and ``--trace``/``--trace-ascii``.

``-v`` does not show the request body; it is read from the ``curl ... -d`` command where the dump
starts with one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.http import http_date_s, http_exchange
from detdiag.evidence.adapters.interface import Broken, Exchange

name: Final = "curl -v or --trace dump"
lacks: Final = ("batch", "expert routing", "concurrency", "end time")

MAX_COMMAND_LINES: Final = 2000
_SENT: Final = re.compile(r"^> ?(GET|POST|PUT|PATCH) (\S+) HTTP/", re.MULTILINE)
_TRACE: Final = re.compile(
    r"^(?:[\d:.]+ )?(?:\[[\w-]+\] )?(=>|<=) (Send|Recv) (header|data)", re.MULTILINE
)
_TIME: Final = re.compile(r"^(?:\d\d:\d\d:\d\d\.\d+ )?(?:\[[\w-]+\] )?(?==>|<=|==)")
_LEFT_INTACT: Final = re.compile(r"\* Connection #\d+ to host .* left intact\s*$")
_PROGRESS: Final = re.compile(r"^[\s\d.kMGT:%-]+$|^\s*% Total|^\s*Dload")
_CONNECTED: Final = re.compile(
    r"^(?:\*|== Info:) +(?:Connected|Established connection) to \S+ \(([^) ]+)"
)
_DOTS: Final = re.compile(rb"\.{4,}|[A-Za-z]\.{2,3}[A-Za-z]")
_HEX: Final = re.compile(r"^([0-9a-f]{4,}): ((?:[0-9a-f]{2} ){1,16})( *)")
_HEX_WIDTH: Final = 48
_ASCII: Final = re.compile(r"^([0-9a-f]{4,}): ?(.*)$")


@dataclass(slots=True)
class _Transfer:
    line: int
    path: str = ""
    sent: dict[str, str] = field(default_factory=dict)
    received: dict[str, str] = field(default_factory=dict)
    status: str | None = None
    request_body: str | bytes | None = None
    body: list[str] = field(default_factory=list)
    raw: bytearray = field(default_factory=bytearray)
    raw_sent: bytearray = field(default_factory=bytearray)
    address: str | None = None
    closed: bool = False
    dotted: bool = False
    """From ``--trace-ascii``, which writes a dot for every byte outside printable ASCII."""


def matches(document: Document) -> bool:
    shown = document.text or ""
    return bool(_SENT.search(shown) or (_TRACE.search(shown) and "HTTP/" in shown))


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    shown = document.text or ""
    found = _trace(shown) if _TRACE.search(shown) else _verbose(shown)
    for transfer in found:
        exchange = http_exchange(
            transfer.line,
            url=f"https://{transfer.sent.get('host', '')}{transfer.path}",
            request_body=transfer.request_body or bytes(transfer.raw_sent) or None,
            response_body=bytes(transfer.raw) or "\n".join(transfer.body) or None,
            status=transfer.status,
            request_headers=transfer.sent,
            response_headers=transfer.received,
            start_s=http_date_s(transfer.received.get("date")),
            replica={"server": transfer.address} if transfer.address else None,
        )
        if exchange is not None and transfer.dotted and _lost(transfer):
            yield replace(exchange, left_out="the dump has dots in place of bytes outside ASCII")
        elif exchange is not None:
            yield exchange


def _lost(transfer: _Transfer) -> bool:
    return any(_DOTS.search(data) for data in (transfer.raw, transfer.raw_sent))


def _verbose(shown: str) -> list[_Transfer]:
    found: list[_Transfer] = []
    command: str | None = None
    address: str | None = None
    rows = shown.splitlines()
    skip_to = 0
    for number, line in enumerate(rows, start=1):
        if number <= skip_to:
            continue
        if re.match(r"^\$? ?curl\s", line):
            words, skip_to = _command(rows, number)
            command = _posted(words)
            if found:
                found[-1].closed = True
        elif connected := _CONNECTED.match(line):
            address = connected.group(1)
        elif request := _SENT.match(line):
            found.append(_Transfer(number, request.group(2), request_body=command, address=address))
        elif found and not found[-1].closed:
            _verbose_line(found[-1], line)
    return found


def _verbose_line(transfer: _Transfer, line: str) -> None:
    if line.startswith(">"):
        _header(transfer.sent, line[1:])
    elif line.startswith("<"):
        _response_header(transfer, line[1:])
    elif not transfer.status or re.match(r"^(\* |[{}] \[\d+ bytes data\])", line):
        return
    elif not _PROGRESS.match(line) or not line.strip():
        body = _LEFT_INTACT.sub("", line)
        transfer.closed = body != line
        transfer.body.append(body)


def _header(into: dict[str, str], line: str) -> None:
    key, colon, value = line.partition(":")
    if colon:
        into[key.strip().lower()] = value.strip()


def _response_header(transfer: _Transfer, line: str) -> None:
    status = re.match(r"^ ?HTTP/\S+ (\d{3})", line)
    if status:
        transfer.status = status.group(1)
        transfer.received.clear()
        transfer.body.clear()
    else:
        _header(transfer.received, line)


def _command(rows: list[str], number: int) -> tuple[str, int]:
    """The curl command that starts at a line, and its last line: it goes on while a quote or a
    backslash is open."""
    command = rows[number - 1].lstrip("$ ")
    for place, line in enumerate(rows[number : number + MAX_COMMAND_LINES], start=number):
        if not command.endswith("\\") and _closed(command):
            return command, place
        command = command[:-1] + " " + line if command.endswith("\\") else command + "\n" + line
    return command, number


def _closed(command: str) -> bool:
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True


def _posted(command: str) -> str | None:
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    flags = ("-d", "--data", "--data-raw", "--data-binary", "--data-ascii", "--json")
    for index, word in enumerate(words):
        if word in flags and index + 1 < len(words):
            return words[index + 1]
        for flag in flags[1:]:
            if word.startswith(flag + "="):
                return word[len(flag) + 1 :]
    return None


def _trace(shown: str) -> list[_Transfer]:
    """Blocks ``=> Send header, 123 bytes (0x7b)`` followed by offset lines."""
    found: list[_Transfer] = []
    block: tuple[str, int] | None = None
    address: str | None = None
    data = bytearray()
    dotted = False
    for number, line in enumerate([*shown.splitlines(), "== end"], start=1):
        line = _TIME.sub("", line)
        mark = _TRACE.match(line)
        if not mark and not line.startswith(("== ", "* ")):
            dotted = _dump_line(data, line) or dotted
            continue
        if block is not None:
            _trace_block(found, *block, bytes(data), address)
            if found:
                found[-1].dotted = dotted
        if connected := _CONNECTED.match(line):
            address = connected.group(1)
        data.clear()
        block = (f"{mark.group(2)} {mark.group(3)}", number) if mark else None
    return found


def _dump_line(data: bytearray, line: str) -> bool:
    """Add one offset line; the offset says whether a CRLF was left out before it. True for a line
    of ``--trace-ascii``."""
    hexed, plain = _HEX.match(line), _ASCII.match(line)
    if hexed and _is_hex_row(hexed, line):
        data += bytes.fromhex(hexed.group(2))
    elif plain:
        if int(plain.group(1), 16) == len(data) + 2:
            data += b"\r\n"
        data += plain.group(2).encode("utf-8", "surrogateescape")
        return True
    return False


def _is_hex_row(found: re.Match[str], line: str) -> bool:
    """Sixteen places of three characters, then as many characters as there are bytes."""
    start, count = found.start(2), len(found.group(2)) // 3
    padded = line[start + 3 * count : start + _HEX_WIDTH]
    return len(line) == start + _HEX_WIDTH + count and not padded.strip()


def _trace_block(
    found: list[_Transfer], mode: str, number: int, data: bytes, address: str | None
) -> None:
    if mode == "Send header":
        first_line, *rest = data.decode("latin-1").splitlines() or [""]
        request = re.match(r"^(GET|POST|PUT|PATCH) (\S+) HTTP/", first_line)
        if request:
            found.append(_Transfer(number, request.group(2), address=address))
            for line in rest:
                _header(found[-1].sent, line)
    elif not found:
        return
    elif mode == "Send data":
        found[-1].raw_sent += data
    elif mode == "Recv header":
        for line in data.decode("latin-1").splitlines():
            _response_header(found[-1], line)
    elif mode == "Recv data":
        found[-1].raw += _dechunked(found[-1], data)


def _dechunked(transfer: _Transfer, data: bytes) -> bytes:
    """A chunk without its size lines, where the body is sent in chunks (RFC 9112, section 7.1)."""
    if "chunked" not in transfer.received.get("transfer-encoding", "").lower():
        return data
    data = re.sub(rb"^(\r\n)?[0-9A-Fa-f]{1,8}\r\n", b"", data)
    return re.sub(rb"\r\n(0\r\n(\r\n)?)?$", b"", data)
