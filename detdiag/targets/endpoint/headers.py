"""Headers: what is sent (and must never be shown), and what a server asks for in its own."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from detdiag.errors import DetdiagError
from detdiag.targets.endpoint.address import Address
from detdiag.targets.endpoint.exchange import Reply
from detdiag.targets.endpoint.reading import ENCODINGS

RETRIED_STATUS: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
LONGEST_WAIT_S: Final = 60.0
"""A server that asks to wait longer than this is not asked again."""


def request_headers(
    address: Address, given: Mapping[str, str], api_key: str | None
) -> dict[str, str]:
    """Raises :class:`DetdiagError` (without the value) for what no header can hold."""
    from detdiag import __version__

    headers = {"user-agent": f"detdiag/{__version__}", "accept": "application/json"}
    headers["accept-encoding"] = ENCODINGS
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
        if "azure" in address.api or "/deployments/" in address.api:
            headers["api-key"] = api_key
    found = {**headers, **{k.lower(): v for k, v in given.items()}}
    for name, value in found.items():
        if not (value.isascii() and value.isprintable()):
            what = "--api-key-env: the key" if name == "authorization" else f"--header {name}:"
            raise DetdiagError(f"{what} holds characters that no HTTP header can")
    return found


def secrets_of(address: Address, given: Mapping[str, str], api_key: str | None) -> tuple[str, ...]:
    """Texts to strike out, longest first. Short values would strike out innocent text."""
    from base64 import b64encode

    parts = urlsplit(address.api)
    user, password = parts.username or "", parts.password or ""
    found = [api_key or "", *given.values(), user, password, unquote(user), unquote(password)]
    if user or password:
        found.append(b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode())
    found += [word for value in given.values() for word in value.split()]
    found += [value for name, value in parse_qsl(address.query) if name != "api-version"]
    return tuple(sorted({s for s in found if len(s) >= 6}, key=len, reverse=True))


def worth_asking_again(reply: Reply, wait_s: float | None) -> bool:
    """Not where the server asks to wait for long, nor where the account is used up (OpenAI's
    ``insufficient_quota`` comes as a 429)."""
    if reply.outcome not in RETRIED_STATUS or (wait_s or 0.0) > LONGEST_WAIT_S:
        return False
    return not (reply.outcome == 429 and b"insufficient_quota" in reply.body)


def moved_to(headers: Mapping[str, str]) -> str:
    """Where a redirect points, without user information and query."""
    try:
        parts = urlsplit(headers.get("location", ""))
        host, port = parts.hostname, parts.port
    except ValueError:
        return "no usable address"
    where = f"{host}:{port}" if port else host or ""
    shown = f"{parts.scheme}://{where}{parts.path}" if where else parts.path
    return " ".join(shown.split())[:120] or "no address"


def asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait: ``retry-after-ms`` (OpenAI, Azure), or ``Retry-After``,
    a number or an HTTP date (RFC 9110); never below 0."""
    exact, value = headers.get("retry-after-ms"), headers.get("retry-after")
    for text, scale in ((exact, 1e-3), (value, 1.0)):
        try:
            found = float(text or "") * scale
        except ValueError:
            continue
        if found == found and found >= 0:
            return found
    try:
        at = email.utils.parsedate_to_datetime(value or "")
        return max(0.0, at.timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
