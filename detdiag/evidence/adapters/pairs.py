"""Plain pairs, one a line or in an array: ``request``/``response``, ``req``/``resp``,
``input``/``output``, with the bodies of any known server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.factors import header_labels
from detdiag.evidence.adapters.http import http_date_s, left_out
from detdiag.evidence.adapters.interface import Broken, Exchange
from detdiag.evidence.adapters.shape import (
    epoch_s,
    first,
    headers,
    label,
    maybe_json,
    number,
    obj,
    text,
)
from detdiag.evidence.adapters.streams import decode_body, is_chunk_list, merge
from detdiag.evidence.adapters.surfaces import surface_of, with_url_model
from detdiag.inputs.canonical import sampling_parameters
from detdiag.layers import FACTOR_LAYERS

name: Final = "request/response pairs"
lacks: Final = ("batch", "expert routing")

REQUEST: Final = ("request", "req", "request_body", "requestBody", "input", "inputs", "prompt")
RESPONSE: Final = (
    "response",
    "resp",
    "response_body",
    "responseBody",
    "output",
    "outputs",
    "completion",
    "result",
)
START: Final = ("start_time", "startTime", "started_at", "timestamp", "time", "ts", "created_at")
END: Final = ("end_time", "endTime", "ended_at", "finished_at", "completed_at")
TOOK_MS: Final = ("latency_ms", "duration_ms", "elapsed_ms", "response_ms", "took_ms")
TOOK_S: Final = ("latency_s", "duration_s", "elapsed_s", "response_time", "elapsed")


def matches(document: Document) -> bool:
    return any(_is_pair(row) for row in document.sample())


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    for line, row in document.rows:
        if isinstance(row, Mapping) and _is_pair(row):
            yield _exchange(line, row)
        else:
            yield Broken(line, "no request and response in this record")


def _is_pair(row: Mapping[str, Any]) -> bool:
    return first(row, *REQUEST) is not None and any(key in row for key in RESPONSE)


def _exchange(line: int, row: Mapping[str, Any]) -> Exchange:
    sent, url, sent_headers = _side(first(row, *REQUEST))
    received, _, received_headers = _side(first(row, *RESPONSE))
    url = url or text(first(row, "url", "endpoint", "path"))
    request = with_url_model(_request(sent, row), url)
    start_s, end_s = times(row)
    status = first(row, "status", "status_code")
    if status is None:
        status = first(first(row, *RESPONSE), "status", "status_code")
    return Exchange(
        line=line,
        id=label(first(row, "id", "request_id", "call_id")),
        request=request,
        response=received,
        surface=text(row.get("surface")) or surface_of(url, request, received),
        factors=own_factors(row),
        replica=header_labels(received_headers),
        start_s=start_s if start_s is not None else http_date_s(received_headers.get("date")),
        end_s=end_s,
        query=label(row.get("query")),
        left_out="the record reports an error"
        if row.get("error")
        else left_out(status, sent_headers, received_headers),
        parameters_recorded=_is_body(row, sent) or _names_parameters(row),
    )


def _is_body(row: Mapping[str, Any], sent: Any) -> bool:
    """A request body holds its parameters; a tracer's ``input`` may be the prompt alone."""
    if not isinstance(sent, Mapping):
        return False
    called_request = first(row, *REQUEST[:4]) is not None
    return called_request or "model" in sent or bool(sampling_parameters(sent))


def _names_parameters(row: Mapping[str, Any]) -> bool:
    """Whether a record beside a bare prompt keeps how it was sampled."""
    own = ("temperature", "top_p", "top_k", "seed", "do_sample")
    return any(row.get(key) is not None for key in own) or bool(_parameters(row))


def _parameters(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return obj(maybe_json(first(row, "parameters", "params", "model_parameters")))


def _side(value: Any) -> tuple[Any, str | None, dict[str, str]]:
    """Body, URL and headers of one half: a body, a string with one, or an HTTP wrapper."""
    value = _decoded(value)
    if isinstance(value, Mapping) and value.get("body") is not None:
        inner = _decoded(value["body"])
        return inner, text(first(value, "url", "uri", "path")), headers(value.get("headers"))
    return value, None, {}


def _decoded(value: Any) -> Any:
    if isinstance(value, str):
        decoded = maybe_json(value)
        if decoded is value and value.startswith(("data:", "event:")):
            return decode_body(value)
        return decoded
    if isinstance(value, list) and value and str(value[0]).startswith(("data:", "event:")):
        return decode_body("\n\n".join(str(one) for one in value))
    return merge(value) if is_chunk_list(value) else value


def _request(sent: Any, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """A request body; a bare prompt or list of messages takes its parameters from the record."""
    if isinstance(sent, Mapping):
        return dict(sent)
    if isinstance(sent, str):
        request: dict[str, Any] = {"prompt": sent}
    elif isinstance(sent, list) and sent:
        request = {"messages": sent}
    else:
        return None
    for key in ("model", "temperature", "top_p", "top_k", "seed", "max_tokens", "n", "stop"):
        if row.get(key) is not None:
            request[key] = row[key]
    return {**request, **_parameters(row)}


def own_factors(row: Mapping[str, Any]) -> dict[str, Any]:
    """Factors that the record names itself, in a ``factors`` object or by their known names."""
    named = {
        key: value
        for key, value in row.items()
        if key in FACTOR_LAYERS and FACTOR_LAYERS[key] not in ("config", "input") and key != "time"
        if value is not None and isinstance(value, (str, int, float, bool))
    }
    return {**named, **obj(row.get("factors"))}


def times(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Start and end in seconds since 1970; the end from a duration where only that is there."""
    start_s, end_s = epoch_s(first(row, *START)), epoch_s(first(row, *END))
    took_ms, took_s = number(first(row, *TOOK_MS)), number(first(row, *TOOK_S))
    if took_s is None and took_ms is not None:
        took_s = took_ms / 1000
    if start_s is not None and end_s is None and took_s is not None and took_s >= 0:
        end_s = start_s + took_s
    return start_s, end_s
