"""A label names one TCP connection, and gets a number when the server hangs up between calls."""

from __future__ import annotations

import asyncio

import pytest

from detdiag.targets.endpoint.address import parse_address
from detdiag.targets.endpoint.client import Client


async def labels(keep: bool, calls: int = 3) -> list[str]:
    """Labels of calls to a server that keeps its connections or closes each after one reply."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            line = b"" if keep else b"connection: close\r\n"
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n" + line + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)  # the body alone, so that it is read after the head
            writer.write(b"{}")
            await writer.drain()
            if not keep:
                break
        writer.close()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = Client(parse_address(f"http://127.0.0.1:{port}"), retries=0)
    try:
        return [(await client.call("GET", "/x", connection="c1")).connection for _ in range(calls)]
    finally:
        await client.aclose()
        server.close()


@pytest.mark.parametrize(
    ("keep", "expected"), [(True, ["c1"] * 3), (False, ["c1", "c1.2", "c1.3"])]
)
def test_a_new_connection_shows_in_the_label(keep: bool, expected: list[str]) -> None:
    assert asyncio.run(labels(keep)) == expected
