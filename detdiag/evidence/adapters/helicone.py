"""Helicone exports with bodies (``--include-body``); the default export has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.interface import Broken, Exchange
from detdiag.evidence.adapters.shape import (
    epoch_s,
    first,
    integer,
    label,
    maybe_json,
    number,
    obj,
    text,
)
from detdiag.evidence.adapters.streams import decode_body, is_chunk_list, merge
from detdiag.evidence.adapters.surfaces import provider_surface, surface_of, with_url_model

name: Final = "Helicone export"
lacks: Final = ("batch", "expert routing", "replica")

_NO_REFERENCE: Final = "00000000-0000-0000-0000-000000000000"
_CACHED: Final = ("prompt_cache_read_tokens", "cache_read_tokens")


def matches(document: Document) -> bool:
    return any(
        ("request_created_at" in row or "helicone_user" in row or "request_path" in row)
        and ("request_id" in row or "request_body" in row)
        for row in document.sample()
    )


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    for line, row in document.rows:
        if isinstance(row, Mapping):
            yield _exchange(line, row)
        else:
            yield Broken(line, "not a JSON object")


def _exchange(line: int, row: Mapping[str, Any]) -> Exchange:
    url = text(first(row, "request_path", "target_url"))
    request = with_url_model(_body(first(row, "request_body", "request")), url)
    response = _body(first(row, "response_body", "response"))
    provider = label(row.get("provider"))
    start_s = epoch_s(row.get("request_created_at"))
    end_s = epoch_s(row.get("response_created_at"))
    took_ms = number(first(row, "delay_ms", "latency", "latency_ms"))
    if end_s is None and start_s is not None and took_ms is not None:
        end_s = start_s + took_ms / 1000
    cached = integer(first(row, *_CACHED))
    found = {"provider": provider, "cached_tokens": cached}
    return Exchange(
        line=line,
        id=label(row.get("request_id")),
        request=request,
        response=response,
        surface=provider_surface(provider) or surface_of(url, request, response),
        factors={key: value for key, value in found.items() if value is not None},
        start_s=start_s,
        end_s=end_s,
        left_out=_left_out(row),
    )


def _body(value: Any) -> Any:
    found = maybe_json(value)
    if isinstance(found, str):
        found = decode_body(found)
    # Streamed replies are stored beside an empty body.
    streamed = obj(found).get("streamed_data")
    if isinstance(streamed, list) and is_chunk_list(streamed):
        return merge(streamed)
    if isinstance(streamed, str):
        return decode_body(streamed)
    return obj(found).get("streamed_data_merged", found)


def _left_out(row: Mapping[str, Any]) -> str | None:
    status = integer(first(row, "response_status", "status", "status_code"))
    if status is not None and (status >= 400 or status < 0):
        return f"HTTP status {status}"
    reference = label(row.get("cache_reference_id"))
    hit = str(row.get("cache_hit")).lower() == "true" or (reference not in (None, _NO_REFERENCE))
    return "answered by a response cache" if hit else None
