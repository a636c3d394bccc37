"""Whose server this is, by what only that family says: never by a version or a model's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_OWNERS: Final = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
"""``owned_by`` of the entries of ``/v1/models``."""

_FINGERPRINTS: Final = (
    (re.compile(r"fp_ollama"), "ollama"),
    (re.compile(r"b\d+-[0-9a-f]{6,}"), "llamacpp"),
    (re.compile(r"vllm-.+"), "vllm"),
)
_GATEWAY_HEADERS: Final = (
    ("x-litellm-version", "litellm"),
    ("x-litellm-call-id", "litellm"),
    ("x-litellm-model-id", "litellm"),
)
_HOSTED_HEADERS: Final = (
    ("apim-request-id", "azure"),
    ("x-ms-region", "azure"),
    ("azureml-model-session", "azure"),
    ("openai-processing-ms", "openai"),
)
_HOSTS: Final = (
    ("openrouter.ai", "openrouter"),
    ("api.openai.com", "openai"),
    ("azure.com", "azure"),
)


def family_of(
    info: Mapping[str, Any],
    *,
    metrics: str | None = None,
    headers: Mapping[str, str] | None = None,
    decoded: Any = None,
    host: str = "",
) -> str | None:
    """vllm, sglang, llamacpp, llama-cpp-python, tgi, ollama, transformers, litellm, openrouter,
    openai, azure or None. A gateway wins over what it passes through: it is what gets the request.

    ``info`` holds the facts of the information routes, ``headers`` and ``decoded`` the first
    answer.
    """
    sent, body = headers or {}, decoded if isinstance(decoded, Mapping) else {}
    return (
        _first(_GATEWAY_HEADERS, sent)
        or _by_host(host)
        or ("openrouter" if _openrouter(body) else None)
        or metrics
        or _by_routes(info)
        or _by_fingerprint(body.get("system_fingerprint"))
        or _first(_HOSTED_HEADERS, sent)
        or _transformers(body, sent)
    )


def _first(names: tuple[tuple[str, str], ...], headers: Mapping[str, str]) -> str | None:
    return next((family for name, family in names if headers.get(name)), None)


def _by_host(host: str) -> str | None:
    return next(
        (family for name, family in _HOSTS if host == name or host.endswith(f".{name}")), None
    )


def _openrouter(body: Mapping[str, Any]) -> bool:
    return isinstance(body.get("provider"), str) and str(body.get("id") or "").startswith("gen-")


def _by_routes(info: Mapping[str, Any]) -> str | None:
    owners = [str(o).lower() for o in info.get("models", {}).get("owned_by", ())]
    named = next((_OWNERS[o] for o in owners if o in _OWNERS), None)
    if named is not None:
        return named
    props, tgi = info.get("props", {}), info.get("tgi_info", {})
    if "build_info" in props or "total_slots" in props:
        return "llamacpp"
    if "server_info" in info:
        return "sglang"
    if "docker_label" in tgi or str(tgi.get("router", "")).startswith("text-generation"):
        return "tgi"
    if "ollama_version" in info and "version" not in info:
        return "ollama"
    return "llama-cpp-python" if owners == ["me"] else None


def _by_fingerprint(value: Any) -> str | None:
    text = value if isinstance(value, str) else ""
    return next((name for pattern, name in _FINGERPRINTS if pattern.fullmatch(text)), None)


def _transformers(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """``transformers serve`` alone sends an empty fingerprint from a uvicorn."""
    empty = body.get("system_fingerprint") == ""
    return "transformers" if empty and headers.get("server") == "uvicorn" else None
