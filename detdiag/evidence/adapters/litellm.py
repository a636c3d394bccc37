"""LiteLLM ``StandardLoggingPayload`` and the proxy's spend-log rows.

Best of all logs for routing: model id, api_base, cache hit, provider.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.factors import header_labels
from detdiag.evidence.adapters.interface import Broken, Exchange
from detdiag.evidence.adapters.shape import (
    dig,
    epoch_s,
    first,
    headers,
    integer,
    label,
    maybe_json,
    obj,
    text,
)
from detdiag.evidence.adapters.surfaces import provider_surface, surface_of

name: Final = "LiteLLM StandardLoggingPayload"
lacks: Final = ("wire body", "batch", "expert routing")

_MARKS: Final = frozenset(
    "model_group model_parameters hidden_params custom_llm_provider cache_hit cache_key api_base "
    "call_type completionStartTime litellm_call_id model_map_information".split()
)
_OTHER_CALLS: Final = ("embedding", "moderation", "image", "transcription", "speech", "rerank")


def matches(document: Document) -> bool:
    return any(_is_payload(_payload(row)) for row in document.sample())


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    for line, row in document.rows:
        payload = _payload(row)
        if not _is_payload(payload):
            yield Broken(line, "not a LiteLLM payload")
        elif not any(kind in str(payload.get("call_type")) for kind in _OTHER_CALLS):
            yield _exchange(line, payload)


def _payload(row: Any) -> Mapping[str, Any]:
    """Callbacks write the payload itself or put it under ``standard_logging_object``."""
    return (
        obj(dig(row, "standard_logging_object"))
        or obj(dig(row, "kwargs", "standard_logging_object"))
        or obj(row)
    )


def _is_payload(row: Mapping[str, Any]) -> bool:
    return len(_MARKS.intersection(row)) >= 3 and ("messages" in row or "response" in row)


def _exchange(line: int, row: Mapping[str, Any]) -> Exchange:
    response = maybe_json(row.get("response"))
    hidden = obj(maybe_json(row.get("hidden_params")))
    provider = label(row.get("custom_llm_provider"))
    request = _request(row)
    return Exchange(
        line=line,
        id=label(first(row, "id", "request_id", "litellm_call_id")),
        request=request,
        response=response,
        surface=provider_surface(provider) or surface_of(None, request, response),
        factors={} if provider is None else {"provider": provider},
        replica=_replica(row, hidden),
        start_s=epoch_s(first(row, "startTime", "start_time")),
        end_s=epoch_s(first(row, "endTime", "end_time")),
        left_out=_left_out(row, hidden),
        parameters_recorded=row.get("model_parameters") is not None
        or "messages" in _sent_body(row),
    )


def _request(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the client asked for: the model group, not the deployment that a router picked."""
    body = _sent_body(row)
    if "messages" in body or "prompt" in body or "input" in body:
        return dict(body)
    request: dict[str, Any] = {}
    model = label(first(row, "model_group", "model"))
    if model is not None:
        request["model"] = model
    request |= obj(maybe_json(row.get("model_parameters")))
    messages = maybe_json(first(row, "messages", "input"))
    if messages:
        request["messages" if isinstance(messages, list) else "prompt"] = messages
    return request


def _sent_body(row: Mapping[str, Any]) -> Mapping[str, Any]:
    sent = obj(maybe_json(row.get("proxy_server_request")))
    return obj(sent.get("body")) or sent


def _replica(row: Mapping[str, Any], hidden: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    labels = {
        "model id": first(row, "model_id") or hidden.get("model_id"),
        "api_base": first(row, "api_base") or hidden.get("api_base"),
        "deployed model": row.get("model"),
    }
    for key, value in labels.items():
        shown = label(value)
        if shown is not None:
            found[key] = shown
    sent = headers(hidden.get("additional_headers"))
    return found | header_labels({k.removeprefix("llm_provider-"): v for k, v in sent.items()})


def _left_out(row: Mapping[str, Any], hidden: Mapping[str, Any]) -> str | None:
    if str(row.get("status")).lower() in ("failure", "error") or row.get("error_str"):
        return "the call failed"
    if str(first(row, "cache_hit") or hidden.get("cache_hit")).lower() == "true":
        return "answered by a response cache (cache_hit)"
    sent = headers(hidden.get("additional_headers"))
    retries = integer(text(sent.get("x-litellm-attempted-retries")))
    return "a retry of an earlier request" if retries else None
