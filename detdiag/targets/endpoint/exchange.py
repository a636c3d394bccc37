"""What goes over the wire, once: a reply, a failure, a retry, and the limits that the user set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from detdiag.errors import DetdiagError

FailureKind = Literal[
    "unreachable", "timeout", "http", "truncated", "invalid-json", "no-answer", "spent"
]


class EndpointError(DetdiagError):
    """A call that gave no answer. ``kind`` says how, ``status`` the HTTP status if there was one,
    ``retries`` what was tried before."""

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        status: int | None = None,
        retries: tuple[Retry, ...] = (),
        body: str = "",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.retries = retries
        self.body = body


@dataclass(frozen=True, slots=True)
class Retry:
    """One attempt that was given up: why, when (seconds since 1970) and the wait that followed."""

    why: str
    at_s: float
    wait_s: float

    def to_dict(self) -> dict[str, Any]:
        return {"why": self.why, "at_s": self.at_s, "wait_s": round(self.wait_s, 3)}


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete HTTP reply. Times are seconds since 1970; ``first_byte_s`` is when the headers
    were there; ``headers`` have lower-case names."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    sent_s: float
    first_byte_s: float
    end_s: float
    connection: str
    retries: tuple[Retry, ...] = ()

    @property
    def wall_s(self) -> float:
        return self.end_s - self.sent_s

    def json(self) -> Any:
        """The decoded body; raises :class:`EndpointError` if it is not JSON."""
        try:
            return orjson.loads(self.body)
        except ValueError as error:
            raise EndpointError(
                "invalid-json",
                f"HTTP {self.status}: the reply is not JSON ({_start(self.body)})",
                status=self.status,
                retries=self.retries,
            ) from error


def _start(body: bytes) -> str:
    shown = " ".join(body[:80].decode("utf-8", "replace").split())
    return "empty" if not shown else f"starts with {shown[:60]!r}"


@dataclass(slots=True)
class Limits:
    """What the user allows, shared by all replicas: ``max_requests`` in all (None: no limit),
    ``rps`` requests started per second. ``sent`` counts every attempt, retries too."""

    max_requests: int | None = None
    rps: float | None = None
    sent: int = 0
    _next_s: float = field(default=0.0)

    @property
    def left(self) -> int | None:
        return None if self.max_requests is None else max(0, self.max_requests - self.sent)

    async def start(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Wait for a turn and count it; raises :class:`EndpointError` when all are used."""
        if self.max_requests is not None and self.sent >= self.max_requests:
            raise EndpointError("spent", f"all {self.max_requests} requests are used")
        self.sent += 1
        if self.rps:
            now = time.monotonic()
            turn = max(now, self._next_s)
            self._next_s = turn + 1.0 / self.rps
            if turn > now:
                await sleep(turn - now)
