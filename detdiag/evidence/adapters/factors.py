"""Factors that a reply carries: who answered, from which cache, under which parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from detdiag.evidence.adapters.shape import arr, dig, first, integer, ints, label, obj
from detdiag.inputs.canonical import sampling_parameters

_CACHED: Final = (
    ("usage", "prompt_tokens_details", "cached_tokens"),
    ("usage", "input_tokens_details", "cached_tokens"),
    ("usage", "cache_read_input_tokens"),
    ("usage", "cacheReadInputTokens"),
    ("usage", "prompt_cache_hit_tokens"),
    ("usageMetadata", "cachedContentTokenCount"),
    ("meta_info", "cached_tokens"),
    ("timings", "cache_n"),
)
_MODEL: Final = ("model", "modelVersion", "model_version")

REPLICA_HEADERS: Final[tuple[str, ...]] = (
    "x-litellm-model-id",
    "x-litellm-model-api-base",
    "x-litellm-model-region",
    "x-ms-region",
    "x-ms-deployment-name",
    "azureml-model-deployment",
    "x-replica",
    "x-replica-id",
    "x-served-by",
    "x-backend",
    "x-backend-server",
    "x-upstream",
    "x-instance-id",
    "x-pod-name",
    "x-node",
    "x-region",
    "x-deployment",
    "x-deployment-id",
)
"""Response headers that name the machine, deployment or region that answered."""

CACHE_HEADERS: Final[dict[str, frozenset[str]]] = {
    "x-litellm-cache-hit": frozenset({"true"}),
    "x-portkey-cache-status": frozenset({"hit", "semantic hit"}),
    "helicone-cache": frozenset({"hit"}),
    "x-cache-status": frozenset({"hit"}),
    "cf-aig-cache-status": frozenset({"hit"}),
    "x-openrouter-cache-status": frozenset({"hit"}),
    "x-litellm-cache-key": frozenset(),
}
"""Response headers of gateways that answer from a response cache; an empty set means any value."""


def response_factors(response: Any) -> dict[str, Any]:
    """Factors of a decoded response body, by the names of ``FACTOR_LAYERS``; absent ones left out.

    ``system_fingerprint``, ``model_reported``, ``provider``, ``cached_tokens`` and, where a server
    echoes what it used (llama.cpp ``generation_settings``), ``effective_params``.
    """
    if isinstance(response, list) and len(response) == 1:
        response = response[0]
    body = obj(response)
    found: dict[str, Any] = {
        "system_fingerprint": label(body.get("system_fingerprint")),
        "model_reported": label(first(body, *_MODEL)),
        "provider": label(body.get("provider")),
        "cached_tokens": cached_tokens(body),
        "weights_digest": label(dig(body, "meta_info", "weight_version")),
    }
    if isinstance(body.get("generation_settings"), Mapping):
        found["effective_params"] = _echoed(body["generation_settings"])
    return {name: value for name, value in found.items() if value is not None}


def cached_tokens(body: Mapping[str, Any]) -> int | None:
    """Prompt tokens that came from a prefix cache; None where the server does not say."""
    for path in _CACHED:
        found = integer(dig(body, *path))
        if found is not None:
            return found
    return None


def _echoed(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    # A negative seed is drawn anew for each request, so the echoed one is a symptom.
    echoed = {k: v for k, v in sampling_parameters(settings).items() if k != "seed"}
    return echoed or None


def prompt_token_ids(response: Any) -> tuple[int, ...] | None:
    """Prompt token ids that a server returned (vLLM ``return_token_ids``, SGLang
    ``logprob_start_len`` 0); None where the channel is absent or partial."""
    body = obj(response)
    found = ints(body.get("prompt_token_ids")) or ints(dig(body, "choices", 0, "prompt_token_ids"))
    if found:
        return found
    entries = arr(dig(body, "meta_info", "input_token_logprobs"))
    ids = ints([dig(entry, 1) for entry in entries])
    whole = integer(dig(body, "meta_info", "prompt_tokens"))
    return ids if ids is not None and whole == len(ids) else None


def header_labels(headers: Mapping[str, str]) -> dict[str, str]:
    """Replica labels found in lower-case response headers."""
    return {name: headers[name] for name in REPLICA_HEADERS if headers.get(name)}


def served_from_cache(headers: Mapping[str, str]) -> bool:
    """Whether a gateway says that it answered from its response cache."""
    for name, values in CACHE_HEADERS.items():
        value = headers.get(name, "").strip().lower()
        if value and (not values or value in values):
            return True
    return False
