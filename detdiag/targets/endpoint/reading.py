"""The body of a reply, unpacked with a bound, and what it says that its status does not."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import orjson

from detdiag.targets.endpoint.exchange import EndpointError

if TYPE_CHECKING:
    import httpx

ENCODINGS: Final = "gzip, deflate"
"""Asked for, since both can be unpacked piece by piece: a small body may hold gigabytes."""


async def read_body(response: httpx.Response, most: int) -> bytes:
    """At most ``most`` unpacked bytes; raises :class:`EndpointError` for more, for another
    encoding than was asked for, and for a packed body that is damaged or cut."""
    chunks: list[bytes] = []
    size = 0
    try:
        unpack = _Unpacker(response.headers.get("content-encoding", ""))
        async for raw in _raw(response):
            for chunk in unpack(raw, most - size + 1):
                size += len(chunk)
                if size > most:
                    raise EndpointError(
                        "truncated", f"the reply is larger than {_size(most)}", lasting=True
                    )
                chunks.append(chunk)
        unpack.finish()
    finally:
        await response.aclose()
    return b"".join(chunks)


async def _raw(response: httpx.Response) -> AsyncIterator[bytes]:
    if response.is_stream_consumed:  # a transport that hands over whole bodies has unpacked them
        response.headers.pop("content-encoding", None)
        yield response.content
        return
    async for chunk in response.aiter_raw():
        yield chunk


class _Unpacker:
    def __init__(self, encoding: str) -> None:
        names = [n.strip().lower() for n in encoding.split(",") if n.strip()]
        names = [n for n in names if n != "identity"]
        if names and names not in (["gzip"], ["x-gzip"], ["deflate"]):
            shown = " ".join(", ".join(names).split())[:40]
            raise EndpointError("truncated", f"the reply is packed as {shown!r}, not asked for")
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32) if names else None
        self._raw_deflate = names == ["deflate"]

    def __call__(self, raw: bytes, most: int) -> list[bytes]:
        if self._zlib is None or not raw:
            return [raw]
        try:
            return [self._zlib.decompress(raw, most)]
        except zlib.error as error:
            if not self._raw_deflate:
                raise _damaged() from error
        self._raw_deflate = False  # some servers send deflate without its two bytes in front
        self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            return [self._zlib.decompress(raw, most)]
        except zlib.error as error:
            raise _damaged() from error

    def finish(self) -> None:
        if self._zlib is not None and not self._zlib.eof:
            raise _damaged()


def _damaged() -> EndpointError:
    return EndpointError("truncated", "the reply broke off: its packed body is damaged or cut")


def _size(count: int) -> str:
    return f"{count // 2**20} MiB" if count >= 2**20 else f"{count} bytes"


def error_inside(status: int, body: bytes) -> int | None:
    """The status that a 200 names in its body (OpenRouter reports what fails during generation
    that way, for the whole reply or for its choice); None where the body is an answer.

    Source: openrouter.ai/docs/api/reference/errors-and-debugging.
    """
    if status != 200 or b'"error"' not in body:
        return None
    try:
        found = orjson.loads(body)
    except ValueError:
        return None
    error = _error_of(found)
    if error is None:
        return None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 502


def _error_of(found: Any) -> Any:
    if not isinstance(found, dict):
        return None
    choices = found.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        return choices[0].get("error") or None
    return found.get("error") or None


def message_of(body: bytes) -> str:
    """The server's own words in an error body, on one line."""
    try:
        found = orjson.loads(body)
    except ValueError:
        return _page_title(body) or " ".join(body[:300].decode("utf-8", "replace").split())[:200]
    found = _error_of(found) or found
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    if isinstance(found, dict):
        found = found.get("message") or found
    return " ".join(str(found).split())[:300]


def _page_title(body: bytes) -> str:
    """The title of an HTML error page: the rest is markup."""
    start = body[:4096].decode("utf-8", "replace")
    if not start.lstrip()[:1] == "<":
        return ""
    low = start.lower()
    begin, end = low.find("<title"), low.find("</title>")
    if not 0 <= begin < end:
        return ""
    title = start[start.find(">", begin) + 1 : end]
    return f"an HTML page: {' '.join(title.split())[:120]}"
