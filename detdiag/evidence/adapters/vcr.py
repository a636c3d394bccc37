"""VCR cassettes (vcrpy and the Ruby original; YAML or JSON), gzip bodies included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.http import from_base64, http_exchange
from detdiag.evidence.adapters.interface import Broken, Exchange
from detdiag.evidence.adapters.shape import arr, dig, epoch_s, first, headers, obj, text

name: Final = "VCR cassette"
lacks: Final = ("batch", "expert routing", "concurrency", "end time")


def matches(document: Document) -> bool:
    found = arr(_interactions(document.value))
    return bool(found) and any("request" in obj(one) for one in found)


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    for line, one in enumerate(arr(_interactions(document.value)), start=1):
        request, response = obj(obj(one).get("request")), obj(obj(one).get("response"))
        if not request or not response:
            yield Broken(line, f"interaction {line} has no request or no response")
            continue
        status = first(response, "status", "status_code")
        exchange = http_exchange(
            line,
            url=text(first(request, "uri", "url")),
            request_body=_body(request.get("body")),
            response_body=_body(first(response, "body", "content")),
            status=dig(status, "code") if isinstance(status, Mapping) else status,
            request_headers=headers(request.get("headers")),
            response_headers=headers(response.get("headers")),
            start_s=epoch_s(obj(one).get("recorded_at")),
        )
        if exchange is not None:
            yield exchange


def _interactions(value: Any) -> Any:
    return first(value, "interactions", "http_interactions")


def _body(value: Any) -> str | bytes | None:
    if isinstance(value, Mapping):
        if value.get("base64_string") is not None:
            return from_base64(value["base64_string"])
        value = value.get("string")
    return value if isinstance(value, (str, bytes)) else None
