"""Where a server lives: one URL as the user gave it, and the paths under it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit, urlunsplit

from detdiag.errors import DetdiagError

_OPERATIONS: Final = ("/chat/completions", "/completions", "/models", "/responses", "/embeddings")
_NATIVE: Final = ("/api/chat", "/api/generate", "/api/tags", "/generate", "/generate_stream")
"""Native calls of Ollama, SGLang and TGI: the OpenAI routes of these lie beside them."""

_DEPLOYMENT: Final = re.compile(r"/deployments/([^/]+)")


@dataclass(frozen=True, slots=True)
class Address:
    """``api`` is the base of ``/chat/completions``; ``root`` that of ``/metrics``, ``/version``.

    ``query`` (Azure's ``api-version``) goes with every call. ``shown`` holds neither user
    information nor query, so it may be written down. ``elsewhere`` are bases to try where the
    first one has no such route.
    """

    api: str
    root: str
    query: str
    shown: str
    elsewhere: tuple[str, ...] = ()

    def url(self, path: str) -> str:
        """The full URL of ``path``: ``v1:/models`` is under the API, ``/metrics`` at the root."""
        base, rest = (self.api, path[3:]) if path.startswith("v1:") else (self.root, path)
        return f"{base}{rest}" + (f"?{self.query}" if self.query else "")

    @property
    def host(self) -> str:
        return urlsplit(self.api).hostname or ""

    @property
    def deployment(self) -> str | None:
        """The model that the URL itself names (Azure)."""
        found = _DEPLOYMENT.search(self.api)
        return unquote(found.group(1)) if found else None


def parse_address(url: str) -> Address:
    """Accept ``http://host:8000``, ``.../v1`` or the full URL of a chat completion.

    Raises :class:`DetdiagError` for what is no http(s) URL.
    """
    text = url.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host = parts.hostname
        port = parts.port
    except ValueError as error:
        raise DetdiagError(f"--endpoint: not a URL ({error})", tip="http://HOST:PORT/v1") from error
    if parts.scheme not in ("http", "https") or not host or not _plausible(host):
        raise DetdiagError("--endpoint: expected http(s)://HOST[:PORT][/v1]")
    path, native = _base(parts.path)
    api = path or "/v1"
    where = f"[{host}]" if ":" in host else host
    where += f":{port}" if port else ""

    def at(base: str, netloc: str = parts.netloc) -> str:
        return urlunsplit((parts.scheme, netloc, base, "", ""))

    return Address(
        at(api), at(api.removesuffix("/v1")), parts.query,
        at(path, where) if not native else at("", where),
        tuple(at(other) for other in _others(path)),
    )  # fmt: skip


def _plausible(host: str) -> bool:
    return host.isprintable() and not any(c in host for c in " \\^`{}|<>\"'")


def _base(path: str) -> tuple[str, bool]:
    """The path below which the operations lie, and whether a native call was named."""
    path = re.sub(r"/{2,}", "/", path).rstrip("/")
    for operation in _NATIVE:
        if path.endswith(operation):
            return path.removesuffix(operation) + "/v1", True
    for operation in _OPERATIONS:
        path = path.removesuffix(operation)
    return path, False


def _others(path: str) -> list[str]:
    """Other usual bases: ``/v1`` below a prefix, in place of Ollama's ``/api``; none at all."""
    if _DEPLOYMENT.search(path) or path.endswith("/v1"):
        return []
    if not path:
        return [""]
    below = [f"{path}/v1"]
    return [*below, f"{path.removesuffix('/api')}/v1"] if path.endswith("/api") else below


def moved(address: Address, api: str) -> Address:
    """The same server with another base."""
    parts = urlsplit(api)
    shown = urlsplit(address.shown)
    return Address(
        api, api.removesuffix("/v1"), address.query,
        urlunsplit((shown.scheme, shown.netloc, parts.path, "", "")),
    )  # fmt: skip
