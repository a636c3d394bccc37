"""What a server says about itself, without what changes from one call to the next."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

INFO_ROUTES: Final = (
    "v1:/models",
    "/version",
    "/props",
    "/get_server_info",
    "/get_model_info",
    "/server_info",
    "/model_info",
    "/api/version",
    "/info",
    "/metrics",
)
"""OpenAI; vLLM; llama.cpp; SGLang (two, under old and new
names); Ollama; TGI; any with Prometheus ``*_info`` gauges."""

_HEADERS: Final = re.compile(
    r"server|via|openai-version|x-ms-region|x-litellm-(version|model-id|model-api-base)"
    r"|x-(model|engine|served-by|replica|pod|backend|inference|region)[\w-]*|llm_provider-server"
)
_VOLATILE: Final = re.compile(
    r"(^|\.)(created(_at)?|permission|id_slot|uptime\w*|start_time|\w*timestamp|slots|pid|ports?"
    r"|host\w*|\w*_ports?|random_seed|internal_states|last_gen_throughput|process_\w+|is_sleeping"
    r"|is_processing|\w*api_key\w*|\w*token_path)(\.|$)"
)
"""Facts about this process or this moment, and names under which a secret may lie."""

_GAUGE: Final = re.compile(r"^([A-Za-z_:][\w:]*_info)\{(.*)\}\s+[\d.eE+]+", re.MULTILINE)
_LABEL: Final = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_LONGEST: Final = 400


def stable_facts(first: Any, second: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted paths to the leaves on which two readings of one route agree; long texts become
    their length and digest."""
    one, two = dict(_leaves(first)), dict(_leaves(second))
    return {
        f"{prefix}{path}": _short(value)
        for path, value in one.items()
        if path in two and two[path] == value and not _VOLATILE.search(path)
    }


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{index}" if path else str(index))
    elif value is not None:
        yield path, value


def _short(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= _LONGEST:
        return value
    import hashlib

    return f"{len(value)} characters, sha256 {hashlib.sha256(value.encode()).hexdigest()[:16]}"


def model_entry(models: Any, name: str) -> Any:
    """The entry of ``/v1/models`` for ``name``; other models of the server are not its facts."""
    data = models.get("data") if isinstance(models, Mapping) else None
    for entry in data if isinstance(data, list) else []:
        if isinstance(entry, Mapping) and entry.get("id") == name:
            return entry
    return {}


def model_names(models: Any) -> list[str]:
    data = models.get("data") if isinstance(models, Mapping) else None
    entries = data if isinstance(data, list) else []
    return [str(e["id"]) for e in entries if isinstance(e, Mapping) and e.get("id")]


def info_gauges(text: str) -> dict[str, dict[str, str]]:
    """Labels of the ``*_info`` gauges of a Prometheus page (vLLM: the cache configuration)."""
    return {
        name.split(":")[-1]: dict(_LABEL.findall(labels)) for name, labels in _GAUGE.findall(text)
    }


def telling_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers that name a build, a place or a deployment; lower-case names."""
    return {k: v for k, v in sorted(headers.items()) if _HEADERS.fullmatch(k)}


def engine_of(routes: Mapping[str, Any], system_fingerprint: Any) -> tuple[str | None, str | None]:
    """(engine, version) from what each engine alone exposes; None where nothing says so."""
    version = _string(routes.get("/version"), "version")
    models = routes.get("v1:/models")
    data = models.get("data") if isinstance(models, Mapping) else None
    owners = {str(e.get("owned_by")) for e in data or [] if isinstance(e, Mapping)}
    if isinstance(routes.get("/get_server_info"), Mapping) or "sglang" in owners:
        told = routes.get("/get_server_info") or routes.get("/server_info")
        return "sglang", _string(told, "version") or version
    if "build_info" in _mapping(routes.get("/props")) or "llamacpp" in owners:
        return "llama.cpp", _string(routes.get("/props"), "build_info") or _text(system_fingerprint)
    if _string(routes.get("/api/version"), "version"):
        return "ollama", _string(routes.get("/api/version"), "version")
    if "docker_label" in _mapping(routes.get("/info")):
        return "tgi", _string(routes.get("/info"), "version")
    if "vllm" in owners:
        return "vllm", version
    return None, version


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _string(value: Any, key: str) -> str | None:
    return _text(_mapping(value).get(key))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
