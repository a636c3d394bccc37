"""What HAR files, cassettes and curl dumps share: one recorded HTTP exchange."""

from __future__ import annotations

import base64
import binascii
import gzip
import zlib
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from detdiag.evidence.adapters.factors import header_labels, served_from_cache
from detdiag.evidence.adapters.interface import Exchange
from detdiag.evidence.adapters.shape import epoch_s, integer, label
from detdiag.evidence.adapters.streams import decode_body
from detdiag.evidence.adapters.surfaces import is_model_call, surface_of, with_url_model


def http_exchange(
    line: int,
    *,
    url: str | None,
    request_body: str | bytes | None,
    response_body: str | bytes | None,
    status: Any,
    request_headers: Mapping[str, str],
    response_headers: Mapping[str, str],
    start_s: float | None = None,
    end_s: float | None = None,
    replica: Mapping[str, str] | None = None,
) -> Exchange | None:
    """An exchange from decoded text bodies; None when it is not a call to a model."""
    sent = decode_body(as_text(request_body, request_headers))
    received = decode_body(as_text(response_body, response_headers))
    if not is_model_call(url, sent, received):
        return None
    request = with_url_model(sent, url)
    return Exchange(
        line=line,
        id=None,
        request=request,
        response=received,
        surface=surface_of(url, request, received),
        replica={**(replica or {}), **header_labels(response_headers)},
        start_s=start_s if start_s is not None else http_date_s(response_headers.get("date")),
        end_s=end_s,
        left_out=left_out(status, request_headers, response_headers),
    )


def left_out(
    status: Any, request_headers: Mapping[str, str], response_headers: Mapping[str, str]
) -> str | None:
    """Why a recorded exchange is no evidence: an HTTP error, a retry, a cached reply."""
    code = integer(status)
    if code is not None and code >= 400:
        return f"HTTP status {code}"
    if served_from_cache(response_headers):
        return "answered by a response cache"
    retries = integer(request_headers.get("x-stainless-retry-count")) or integer(
        response_headers.get("x-litellm-attempted-retries")
    )
    return "a retry of an earlier request" if retries else None


def as_text(body: str | bytes | None, headers: Mapping[str, str]) -> str | None:
    """Text of a body; gzip and deflate undone. None where the bytes cannot be read."""
    if body is None or isinstance(body, str):
        return body
    try:
        return _inflated(body, headers.get("content-encoding", "")).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError):
        return None


def _inflated(body: bytes, encoding: str) -> bytes:
    if body.startswith(b"\x1f\x8b"):
        return gzip.decompress(body)
    if "deflate" in encoding.lower():
        try:
            return zlib.decompress(body)
        except zlib.error:
            return zlib.decompress(body, -zlib.MAX_WBITS)
    return body


def from_base64(value: Any) -> bytes | None:
    try:
        return base64.b64decode(value, validate=False)
    except (binascii.Error, ValueError, TypeError):
        return None


def http_date_s(value: Any) -> float | None:
    """Seconds since 1970 from a ``Date`` header (RFC 9110)."""
    shown = label(value)
    if shown is None:
        return None
    try:
        return parsedate_to_datetime(shown).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return epoch_s(shown)
