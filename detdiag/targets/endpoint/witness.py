"""Did requests really run together? The server's own gauge, or time that cannot be explained
otherwise. Without either, nobody knows what a burst did on the server."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from detdiag.targets.endpoint.client import Client
from detdiag.targets.endpoint.exchange import EndpointError

GAUGES: Final = {
    "vllm": "vllm:num_requests_running",
    "sglang": "sglang:num_running_reqs",
    "llamacpp": "llamacpp:requests_processing",
    "tgi": "tgi_batch_current_size",
}
COUNTERS: Final = {
    "vllm": "vllm:request_success_total",
    "sglang": "sglang:num_requests_total",
    "tgi": "tgi_request_success",
}
POLL_S: Final = 0.003
READY_S: Final = 2.0
FASTER: Final = 0.6
"""A burst in less than this share of its requests' time one after the other ran together."""

Kind = Literal["metrics", "overlap", "none"]


def read_series(text: str, name: str) -> float | None:
    """Sum of all samples of one metric (over its labels); None where it is absent."""
    pattern = re.compile(rf"^{re.escape(name)}(?:\{{.*\}})?\s+(\S+)", re.MULTILINE)
    values = []
    for found in pattern.findall(text):
        try:
            values.append(float(found))
        except ValueError:
            continue
    return sum(values) if values else None


async def read_metric(client: Client, name: str) -> float | None:
    """One metric now; None where the server does not tell."""
    try:
        reply = await client.call(
            "GET", "/metrics", connection="gauge", retry=False, timeout_s=5.0, counted=False
        )
    except EndpointError:
        return None
    return read_series(reply.body.decode("utf-8", "replace"), name) if reply.status == 200 else None


class Gauge:
    """Polls the gauge of running requests while a burst runs: ``with Gauge(...) as g``.

    In a thread of its own: the event loop is busiest exactly when the burst is sent."""

    def __init__(self, client: Client, family: str | None) -> None:
        self.client = client
        self.name = GAUGES.get(family or "")
        self.most = 0
        self.polls = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Gauge:
        if self.name is not None:
            ready = threading.Event()
            self._thread = threading.Thread(
                target=self._poll, args=(self.name, ready), name="detdiag-gauge", daemon=True
            )
            self._thread.start()
            ready.wait(READY_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(READY_S)

    def _poll(self, name: str, ready: threading.Event) -> None:
        with self.client.plain() as get:
            while not self._over.is_set():
                text = get("/metrics")
                value = None if text is None else read_series(text, name)
                ready.set()
                if value is not None:
                    self.polls += 1
                    self.most = max(self.most, int(value))
                self._over.wait(POLL_S)


@dataclass(frozen=True, slots=True)
class Call:
    """One finished request of a burst: seconds since 1970, tokens in and out, and ``alone_s``,
    what the server takes for such a request when it is alone (no round trip; 0: unknown)."""

    sent_s: float
    end_s: float
    tokens: int
    alone_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Witness:
    """``running`` is what the gauge showed at most; ``speedup`` the time that the requests take
    one after the other, over the time the burst took."""

    kind: Kind
    running: int
    speedup: float | None


def witness(gauge: Gauge, calls: Sequence[Call], round_trip_s: float) -> Witness:
    """The strongest witness of one burst."""
    speedup = None
    serial = sum(c.alone_s for c in calls)
    if len(calls) > 1 and serial > 0:
        wall = max(c.end_s for c in calls) - min(c.sent_s for c in calls) - round_trip_s
        speedup = serial / wall if wall > 0 else None
    if gauge.most > 1:
        return Witness("metrics", gauge.most, speedup)
    if speedup is not None and speedup * FASTER > 1.0:
        return Witness("overlap", 0, speedup)
    return Witness("none", gauge.most, speedup)


def in_flight(calls: Sequence[Call], at: Call) -> int:
    """Requests whose interval overlaps that of ``at``, itself included."""
    return sum(c.sent_s < at.end_s and c.end_s > at.sent_s for c in calls)
