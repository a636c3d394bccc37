"""HTTP to a model server: one TCP connection per label, limits, and retries that are recorded.

Secrets (the key, header values that the user gave, user information of the URL) are sent and
never returned: every text that leaves this module has them struck out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import orjson

from detdiag.targets.endpoint.address import Address
from detdiag.targets.endpoint.exchange import EndpointError, Limits, Reply, Retry
from detdiag.targets.endpoint.headers import (
    LONGEST_WAIT_S,
    asked_wait_s,
    moved_to,
    request_headers,
    secrets_of,
    worth_asking_again,
)
from detdiag.targets.endpoint.reading import error_inside, message_of, read_body

if TYPE_CHECKING:
    import httpx

LARGEST_BODY: Final = 64 * 1024 * 1024
"""Bytes of one reply, unpacked, that are read at most."""
LARGEST_PAGE: Final = 8 * 1024 * 1024
"""The same for a page of metrics."""


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
        self._headers = request_headers(address, headers or {}, api_key)
        self._secrets = secrets_of(address, headers or {}, api_key)
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
                if not retry or error.lasting or len(tried) >= most:
                    raise self._final(error, tried) from error.__cause__
                tried.append(await self._back_off(error.message, len(tried), None))
                continue
            wait_s = asked_wait_s(reply.headers)
            if retry and len(tried) < self.retries and worth_asking_again(reply, wait_s):
                tried.append(await self._back_off(reply.says(), len(tried), wait_s))
                continue
            return replace(reply, retries=tuple(tried))

    async def post_json(
        self, path: str, body: Mapping[str, Any], **options: Any
    ) -> tuple[Reply, Any]:
        """POST and decode; raises :class:`EndpointError` for a status of 300 and above, and for an
        error inside a 200."""
        reply = await self.call("POST", path, body, **options)
        if reply.outcome >= 300:
            raise self.refused(reply)
        return reply, reply.json()

    def refused(self, reply: Reply) -> EndpointError:
        """The error of a reply with another status than success, with the server's own words."""
        words = self.scrub(message_of(reply.body))
        shown = ": ".join(filter(None, [reply.says(), words]))
        tip = None
        if reply.status in (401, 403):
            tip = "name the variable that holds the key with --api-key-env"
        if 300 <= reply.status < 400:
            shown += f": moved to {moved_to(reply.headers)}"
            tip = "give that address; redirects are not followed, since a key would go with them"
        wait_s = asked_wait_s(reply.headers)
        if wait_s is not None and wait_s > LONGEST_WAIT_S:
            shown += f" (asks to wait {wait_s:.0f} s)"
        return EndpointError(
            "http", shown, status=reply.outcome, retries=reply.retries, body=words, tip=tip
        )

    @contextmanager
    def plain(self) -> Iterator[Callable[[str], str | None]]:
        """Blocking GETs for a thread beside the event loop; None for what is no 200."""
        import httpx

        headers = {**self._headers, "accept-encoding": "identity"}
        with httpx.Client(headers=headers, timeout=5.0, verify=self._tls()) as pool:

            def get(path: str) -> str | None:
                page = b""
                try:
                    with pool.stream("GET", self.address.url(path)) as reply:
                        for piece in reply.iter_raw():
                            page += piece
                            if len(page) > LARGEST_PAGE:
                                return None
                except httpx.HTTPError:
                    return None
                return page.decode("utf-8", "replace") if reply.status_code == 200 else None

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
                label = self._connection(connection, response)
                data = await read_body(response, LARGEST_BODY)
        except (TimeoutError, httpx.TimeoutException) as error:
            await self.forget(connection)
            message = f"no reply within {limit_s:g} s from {self.address.shown}"
            raise EndpointError("timeout", message) from error
        except httpx.ConnectError as error:
            raise self._unreachable(error) from error
        except EndpointError:
            await self.forget(connection)
            raise
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
            label,
            told=error_inside(response.status_code, data),
        )

    def _unreachable(self, error: Exception) -> EndpointError:
        words = self._words(error)
        message = f"cannot connect to {self.address.shown}: {words}"
        if "CERTIFICATE_VERIFY_FAILED" in words:
            tip = "SSL_CERT_FILE=CA.pem in the environment trusts its authority"
            return EndpointError("unreachable", message, tip=tip, lasting=True)
        if "SSL" in words or "TLS" in words:
            tip = "does this port speak https? http:// if not"
            return EndpointError("unreachable", message, tip=tip, lasting=True)
        return EndpointError("unreachable", message, tip="is the server running at this address?")

    def _connection(self, label: str, response: httpx.Response) -> str:
        """``label``, with a number from its second TCP connection on (the server may hang up).

        Asked before the body is read: a socket that the server wants closed has no address after.
        """
        stream = response.extensions.get("network_stream")
        try:
            address = None if stream is None else stream.get_extra_info("client_addr")
        except OSError:
            address = None
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
            error.kind, error.message + times, status=error.status, retries=tuple(tried),
            tip=error.tip, lasting=error.lasting,
        )  # fmt: skip

    async def _back_off(self, why: str, tried: int, wait_s: float | None) -> Retry:
        if wait_s is None:
            wait_s = 0.25 * 2**tried
        at_s = time.time()
        await asyncio.sleep(wait_s)
        return Retry(why, at_s, wait_s)
