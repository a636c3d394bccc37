"""HAR 1.2 (http://www.softwareishard.com/blog/har-12-spec/): browser and proxy recordings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.http import from_base64, http_exchange
from detdiag.evidence.adapters.interface import Broken, Exchange
from detdiag.evidence.adapters.overlap import peak_overlap
from detdiag.evidence.adapters.shape import arr, dig, epoch_s, headers, label, number, obj, text

name: Final = "HAR 1.2"
lacks: Final = ("batch", "expert routing")
MIN_PER_CONNECTION: Final = 4


def matches(document: Document) -> bool:
    return isinstance(dig(document.value, "log", "entries"), list)


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    entries = arr(dig(document.value, "log", "entries"))
    found: list[tuple[Exchange, str | None]] = []
    for line, entry in enumerate(entries, start=1):
        if not isinstance(entry, Mapping) or not obj(entry.get("request")):
            yield Broken(line, f"log.entries[{line - 1}] has no request")
            continue
        one = _entry(line, entry)
        if one is not None:
            found.append((one, label(entry.get("connection"))))
    yield from _with_connections(found)


def _entry(line: int, entry: Mapping[str, Any]) -> Exchange | None:
    request, response = obj(entry.get("request")), obj(entry.get("response"))
    start_s, took_ms = epoch_s(entry.get("startedDateTime")), number(entry.get("time"))
    address = label(entry.get("serverIPAddress"))
    timed = start_s is not None and took_ms is not None and took_ms >= 0
    return http_exchange(
        line,
        url=text(request.get("url")),
        request_body=text(dig(request, "postData", "text")),
        response_body=_content(obj(response.get("content"))),
        status=response.get("status"),
        request_headers=headers(request.get("headers")),
        response_headers=headers(response.get("headers")),
        start_s=start_s,
        end_s=start_s + took_ms / 1000 if timed and start_s is not None and took_ms else None,
        replica={"server": address} if address else None,
    )


def _content(content: Mapping[str, Any]) -> str | bytes | None:
    if content.get("encoding") == "base64":
        return from_base64(content.get("text"))
    return text(content.get("text"))


def _with_connections(found: list[tuple[Exchange, str | None]]) -> Iterator[Exchange]:
    """Where nothing else names the server, sequential requests on few long-lived connections
    may: a layer-4 balancer keeps a connection on one replica. Parallel connections say nothing,
    because a client opens them for its own load."""
    counts = Counter(connection for _, connection in found)
    spans = [
        ("", e.start_s, e.end_s) if e.start_s is not None and e.end_s is not None else None
        for e, _ in found
    ]
    usable = (
        len(counts) > 1
        and None not in counts
        and min(counts.values()) >= MIN_PER_CONNECTION
        and not any(e.replica for e, _ in found)
        and all(peak == 1 for peak in peak_overlap(spans))
    )
    for exchange, connection in found:
        if usable:
            yield replace(exchange, replica={"connection": f"connection {connection}"})
        else:
            yield exchange
