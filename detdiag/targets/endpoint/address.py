"""Where a server lives: one URL as the user gave it, and the paths under it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from detdiag.errors import DetdiagError

_OPERATIONS = ("/chat/completions", "/completions", "/models")


@dataclass(frozen=True, slots=True)
class Address:
    """``api`` is the base of ``/chat/completions``; ``root`` that of ``/metrics``, ``/version``.

    ``query`` (Azure's ``api-version``) goes with every call. ``shown`` holds neither user
    information nor query, so it may be written down.
    """

    api: str
    root: str
    query: str
    shown: str

    def url(self, path: str) -> str:
        """The full URL of ``path``: ``v1:/models`` is under the API, ``/metrics`` at the root."""
        base, rest = (self.api, path[3:]) if path.startswith("v1:") else (self.root, path)
        return f"{base}{rest}" + (f"?{self.query}" if self.query else "")


def parse_address(url: str) -> Address:
    """Accept ``http://host:8000``, ``.../v1`` or the full URL of a chat completion.

    Raises :class:`DetdiagError` for what is no http(s) URL.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host = parts.hostname
        port = parts.port
    except ValueError as error:
        raise DetdiagError(f"--endpoint: not a URL ({error})", tip="http://HOST:PORT/v1") from error
    if parts.scheme not in ("http", "https") or not host:
        raise DetdiagError("--endpoint: expected http(s)://HOST[:PORT][/v1]")
    path = parts.path.rstrip("/")
    for operation in _OPERATIONS:
        path = path.removesuffix(operation)
    api = path or "/v1"
    root = api.removesuffix("/v1")
    where = f"[{host}]" if ":" in host else host
    where += f":{port}" if port else ""
    shown = urlunsplit((parts.scheme, where, path, "", ""))
    return Address(
        urlunsplit((parts.scheme, parts.netloc, api, "", "")),
        urlunsplit((parts.scheme, parts.netloc, root, "", "")),
        parts.query,
        shown,
    )
