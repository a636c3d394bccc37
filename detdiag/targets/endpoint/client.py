"""HTTP to a model server: one TCP connection per label, limits, and retries that are recorded.

Secrets (the key, header values that the user gave, user information of the URL) are sent and
never returned: every text that leaves this module has them struck out.
"""

from __future__ import annotations

import asyncio
import email.utils
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson

from detdiag.targets.endpoint.address import Address
from detdiag.targets.endpoint.exchange import EndpointError, Limits, Reply, Retry

if TYPE_CHECKING:
    import httpx

RETRIED_STATUS: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
LARGEST_BODY: Final = 64 * 1024 * 1024
"""Bytes of one reply that are read at most."""
LONGEST_WAIT_S: Final = 30.0


class Client:
    """Calls one server. Each connection label has its own pool of exactly one TCP connection."""

    def __init__(
        self,
        address: Address,
        *,
        headers: Mapping[str, str] | None = None,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 3,
        limits: Limits | None = None,
        transport: Any = None,
    ) -> None:
        self.address = address
        self.limits = limits or Limits()
        self.timeout_s = timeout_s
        self.retries = retries
        self._headers = _all_headers(address, headers or {}, api_key)
        self._secrets = _secrets(address, headers or {}, api_key)
        self._transport = transport
        self._pools: dict[str, httpx.AsyncClient] = {}
        self._ports: dict[str, list[int]] = {}
        self._context: Any = None

    def scrub(self, text: str) -> str:
        """``text`` without the key, the user's header values and the URL's user information."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        connection: str = "c0",
        timeout_s: float | None = None,
        retry: bool = True,
        counted: bool = True,
    ) -> Reply:
        """One HTTP call with its retries; ``path`` as in :meth:`Address.url`.

        Any status below 400 (and 4xx that no retry can cure) is returned. Raises
        :class:`EndpointError` when the server cannot be reached, keeps failing or cuts its reply.
        """
        tried: list[Retry] = []
        while True:
            if counted:
                await self.limits.start()
            try:
                reply = await self._once(method, path, body, connection, timeout_s)
            except EndpointError as error:
                most = min(1, self.retries) if error.kind == "timeout" else self.retries
                if not retry or len(tried) >= most:
                    raise self._final(error, tried) from error.__cause__
                tried.append(await self._back_off(error.message, len(tried), None))
                continue
            if reply.status in RETRIED_STATUS and retry and len(tried) < self.retries:
                after = reply.headers.get("retry-after")
                tried.append(await self._back_off(f"HTTP {reply.status}", len(tried), after))
                continue
            return Reply(
                reply.status, reply.headers, reply.body, reply.sent_s, reply.first_byte_s,
                reply.end_s, reply.connection, tuple(tried),
            )  # fmt: skip

    async def post_json(
        self, path: str, body: Mapping[str, Any], **options: Any
    ) -> tuple[Reply, Any]:
        """POST and decode; raises :class:`EndpointError` for a status of 400 and above."""
        reply = await self.call("POST", path, body, **options)
        if reply.status >= 300:
            raise self.refused(reply)
        return reply, reply.json()

    def refused(self, reply: Reply) -> EndpointError:
        """The error of a reply with another status than success, with the server's own words."""
        words = self.scrub(_message(reply.body))
        return EndpointError(
            "http",
            f"HTTP {reply.status}" + (f": {words}" if words else ""),
            status=reply.status,
            retries=reply.retries,
            body=words,
        )

    @contextmanager
    def plain(self) -> Iterator[Callable[[str], str | None]]:
        """Blocking GETs for a thread beside the event loop; None for what is no 200."""
        import httpx

        with httpx.Client(headers=self._headers, timeout=5.0, verify=self._tls()) as pool:

            def get(path: str) -> str | None:
                try:
                    reply = pool.get(self.address.url(path))
                except httpx.HTTPError:
                    return None
                return reply.text if reply.status_code == 200 else None

            yield get

    async def aclose(self) -> None:
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await pool.aclose()

    async def forget(self, connection: str) -> None:
        """Close one connection; its label opens a new one at the next call."""
        pool = self._pools.pop(connection, None)
        if pool is not None:
            await pool.aclose()

    def _pool(self, connection: str) -> httpx.AsyncClient:
        if connection not in self._pools:
            import httpx

            self._pools[connection] = httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(self.timeout_s, connect=min(10.0, self.timeout_s)),
                limits=httpx.Limits(
                    max_connections=1, max_keepalive_connections=1, keepalive_expiry=600.0
                ),
                transport=self._transport,
                verify=self._tls(),
                follow_redirects=False,
            )
        return self._pools[connection]

    def _tls(self) -> Any:
        """One TLS context for all connections: making one takes longer than a short request."""
        if self._context is None and self.address.api.startswith("https"):
            import httpx

            self._context = httpx.create_ssl_context()
        return self._context if self._context is not None else False

    async def _once(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        connection: str,
        timeout_s: float | None,
    ) -> Reply:
        import httpx

        content = None if body is None else orjson.dumps(dict(body))
        headers = {} if content is None else {"content-type": "application/json"}
        pool = self._pool(connection)
        limit_s = timeout_s or self.timeout_s
        clock, start = time.time() - time.perf_counter(), time.perf_counter()
        try:
            async with asyncio.timeout(limit_s):  # httpx's own timeout restarts with every byte
                request = pool.build_request(
                    method, self.address.url(path), content=content, headers=headers
                )
                response = await pool.send(request, stream=True)
                first = time.perf_counter()
                data = await _read(response)
        except (TimeoutError, httpx.TimeoutException) as error:
            await self.forget(connection)
            message = f"no reply within {limit_s:g} s from {self.address.shown}"
            raise EndpointError("timeout", message) from error
        except httpx.ConnectError as error:
            message = f"cannot connect to {self.address.shown}: {self._words(error)}"
            raise EndpointError("unreachable", message) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            await self.forget(connection)
            message = f"the reply broke off: {type(error).__name__} {self._words(error)}".strip()
            raise EndpointError("truncated", message) from error
        return Reply(
            response.status_code,
            {k.lower(): v for k, v in response.headers.items()},
            data,
            clock + start,
            clock + first,
            clock + time.perf_counter(),
            self._connection(connection, response),
        )

    def _connection(self, label: str, response: httpx.Response) -> str:
        """``label``, with a number from its second TCP connection on (the server may hang up)."""
        stream = response.extensions.get("network_stream")
        address = None if stream is None else stream.get_extra_info("client_addr")
        if not isinstance(address, tuple) or len(address) < 2:
            return label
        ports = self._ports.setdefault(label, [])
        if address[1] not in ports:
            ports.append(address[1])
        place = ports.index(address[1])
        return label if not place else f"{label}.{place + 1}"

    def _words(self, error: Exception) -> str:
        return self.scrub(" ".join(str(error).split()))[:160]

    def _final(self, error: EndpointError, tried: list[Retry]) -> EndpointError:
        times = f" (after {len(tried)} retries)" if tried else ""
        return EndpointError(
            error.kind, error.message + times, status=error.status, retries=tuple(tried)
        )

    async def _back_off(self, why: str, tried: int, retry_after: str | None) -> Retry:
        wait_s = _retry_after_s(retry_after)
        if wait_s is None:
            wait_s = 0.25 * 2**tried
        wait_s = min(LONGEST_WAIT_S, max(0.0, wait_s))
        at_s = time.time()
        await asyncio.sleep(wait_s)
        return Retry(why, at_s, wait_s)


async def _read(response: httpx.Response) -> bytes:
    chunks, size = [], 0
    try:
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > LARGEST_BODY:
                raise EndpointError(
                    "truncated", f"the reply is larger than {LARGEST_BODY // 2**20} MiB"
                )
            chunks.append(chunk)
    finally:
        await response.aclose()
    return b"".join(chunks)


def _all_headers(address: Address, given: Mapping[str, str], api_key: str | None) -> dict[str, str]:
    from detdiag import __version__

    headers = {"user-agent": f"detdiag/{__version__}", "accept": "application/json"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
        if "azure" in address.api:
            headers["api-key"] = api_key
    return {**headers, **{k.lower(): v for k, v in given.items()}}


def _secrets(address: Address, given: Mapping[str, str], api_key: str | None) -> tuple[str, ...]:
    """Texts to strike out, longest first. Short values would strike out innocent text."""
    import urllib.parse

    parts = urllib.parse.urlsplit(address.api)
    found = [api_key or "", *given.values(), parts.password or ""]
    found += [word for value in given.values() for word in value.split()]
    found += [value for _, value in urllib.parse.parse_qsl(address.query)]
    return tuple(sorted({s for s in found if len(s) >= 6}, key=len, reverse=True))


def _message(body: bytes) -> str:
    """The server's own words in an error body, on one line."""
    try:
        found = orjson.loads(body)
    except ValueError:
        return " ".join(body[:300].decode("utf-8", "replace").split())[:200]
    for key in ("error", "detail", "message"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    if isinstance(found, dict):
        found = found.get("message") or found
    return " ".join(str(found).split())[:300]


def _retry_after_s(value: str | None) -> float | None:
    """Seconds of a ``Retry-After`` header: a number or an HTTP date (RFC 9110)."""
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, TypeError):
        return None
