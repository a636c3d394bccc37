"""What goes over the wire, once: a reply, a failure, a retry, and the limits that the user set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from detdiag.errors import DetdiagError
from detdiag.evidence.adapters.shape import loads

FailureKind = Literal[
    "unreachable", "timeout", "http", "truncated", "invalid-json", "no-answer", "spent"
]


class EndpointError(DetdiagError):
    """A call that gave no answer. ``kind`` says how, ``status`` the HTTP status if there was one
    (or the one that the body of a 200 names), ``retries`` what was tried before. ``lasting``:
    asking again cannot help. Characters that no terminal should get are spelled out."""

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        status: int | None = None,
        retries: tuple[Retry, ...] = (),
        body: str = "",
        tip: str | None = None,
        lasting: bool = False,
    ) -> None:
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in message)
        super().__init__(shown, tip=tip)
        self.kind = kind
        self.status = status
        self.retries = retries
        self.body = body
        self.lasting = lasting


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
    were there; ``headers`` have lower-case names. ``told`` is the status that the body of a 200
    names, where it holds an error."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    sent_s: float
    first_byte_s: float
    end_s: float
    connection: str
    retries: tuple[Retry, ...] = ()
    told: int | None = None

    @property
    def wall_s(self) -> float:
        return self.end_s - self.sent_s

    @property
    def outcome(self) -> int:
        """The status that counts."""
        return self.status if self.told is None else self.told

    def says(self) -> str:
        return f"HTTP {self.status}" + (f" with error {self.told}" if self.told else "")

    def json(self) -> Any:
        """The decoded body; raises :class:`EndpointError` if it is neither JSON nor an event
        stream (some servers and gateways stream although nobody asked them to)."""
        try:
            return loads(self.body)
        except ValueError as error:
            streamed = _streamed(self.body)
            if streamed is not None:
                return streamed
            raise EndpointError(
                "invalid-json",
                f"HTTP {self.status}: the reply is not JSON ({_start(self.body)})",
                status=self.status,
                retries=self.retries,
            ) from error


def _streamed(body: bytes) -> Any:
    """One body from server-sent events, comment lines (OpenRouter's ``: OPENROUTER PROCESSING``)
    left out; None where it holds none. Comments may stand in front of plain JSON, too."""
    if body.lstrip()[:5] != b"data:" and body.lstrip()[:1] != b":":
        return None
    from detdiag.evidence.adapters.streams import decode_body

    text = body.decode("utf-8", "replace")
    found = decode_body(text)
    if found is None:
        found = decode_body("\n".join(x for x in text.splitlines() if not x.startswith(":")))
    return found


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
