"""Langfuse exports: generations of the UI's batch export (JSON, JSONL, CSV) and of the API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from detdiag.evidence.adapters import bodies
from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.interface import Broken, Exchange
from detdiag.evidence.adapters.shape import (
    arr,
    epoch_s,
    first,
    integer,
    label,
    maybe_json,
    obj,
)
from detdiag.evidence.adapters.surfaces import surface_of
from detdiag.evidence.observation import Output
from detdiag.inputs.canonical import sampling_parameters

name: Final = "Langfuse export"
lacks: Final = ("wire body", "log-probabilities", "token ids", "batch", "expert routing", "replica")

_PARAMETERS: Final = ("modelParameters", "model_parameters")
_CACHED: Final = (
    "input_cached_tokens",
    "cache_read_input_tokens",
    "input_cache_read",
    "cached_tokens",
)


def matches(document: Document) -> bool:
    return any(_is_generation(one) for row in document.sample() for one in _observations(row))


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    for line, row in document.rows:
        if not isinstance(row, Mapping):
            yield Broken(line, "not a JSON object")
            continue
        for one in _observations(row):
            if _is_generation(one):
                yield _exchange(line, one)


def _observations(row: Any) -> list[Mapping[str, Any]]:
    """The observations inside an exported trace, else the row itself."""
    nested = [one for one in arr(obj(row).get("observations")) if isinstance(one, Mapping)]
    return nested or [obj(row)]


def _is_generation(row: Mapping[str, Any]) -> bool:
    if "input" not in row and "output" not in row:
        return False
    kind = row.get("type")
    traced = any(k in row for k in ("traceId", "trace_id", *_PARAMETERS, "usageDetails"))
    if kind is not None:
        return str(kind).upper() == "GENERATION" and traced
    return traced and any(k in row for k in _PARAMETERS)


def _exchange(line: int, row: Mapping[str, Any]) -> Exchange:
    output = maybe_json(row.get("output"))
    body = output if bodies.family_of(output) is not None else None
    request = _request(row)
    return Exchange(
        line=line,
        id=label(row.get("id")),
        request=request,
        response=body,
        output=None if body is not None else _output(output),
        surface=surface_of(None, request, body),
        factors=_factors(row),
        start_s=epoch_s(first(row, "startTime", "start_time", "timestamp")),
        end_s=epoch_s(first(row, "endTime", "end_time")),
        left_out="the generation is marked as an error" if row.get("level") == "ERROR" else None,
        parameters_recorded=_has_parameters(row, request),
    )


def _has_parameters(row: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    """Only some integrations fill ``modelParameters``; the rest leave it null or empty."""
    return bool(obj(maybe_json(first(row, *_PARAMETERS)))) or bool(sampling_parameters(request))


def _request(row: Mapping[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = {}
    model = label(first(row, "model", "providedModelName", "provided_model_name"))
    if model is not None:
        request["model"] = model
    parameters = obj(maybe_json(first(row, *_PARAMETERS)))
    request |= {key: _value(value) for key, value in parameters.items()}
    asked = maybe_json(row.get("input"))
    if isinstance(asked, Mapping) and ("messages" in asked or "prompt" in asked):
        request |= asked
    elif isinstance(asked, list):
        request["messages"] = asked
    elif asked:
        request["prompt"] = asked
    return request


def _value(value: Any) -> Any:
    """Parameters may be stored as strings: ``"0"`` is the number that was sent."""
    if not isinstance(value, str):
        return value
    found = maybe_json(value)
    if found is not value:
        return found
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return float(value)
    except ValueError:
        return value


def _output(value: Any) -> Output:
    if isinstance(value, list) and value:
        value = value[0]
    found = bodies.outputs(value)
    return found[0] if found else Output()


def _factors(row: Mapping[str, Any]) -> dict[str, Any]:
    usage = obj(maybe_json(first(row, "usageDetails", "usage_details")))
    metadata = obj(maybe_json(row.get("metadata")))
    found = {
        "cached_tokens": integer(first(usage, *_CACHED)),
        "system_fingerprint": label(metadata.get("system_fingerprint")),
        "provider": label(metadata.get("provider")),
    }
    return {key: value for key, value in found.items() if value is not None}
