"""LangSmith runs: LangChain models (``generations``) and wrapped OpenAI clients (``choices``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from detdiag.evidence.adapters import bodies
from detdiag.evidence.adapters.bodies.parts import answer_text, positions
from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.interface import Broken, Exchange
from detdiag.evidence.adapters.shape import (
    arr,
    content_text,
    dig,
    epoch_s,
    first,
    integer,
    label,
    maybe_json,
    obj,
    text,
)
from detdiag.evidence.adapters.surfaces import provider_surface, surface_of
from detdiag.evidence.observation import Output

name: Final = "LangSmith runs"
lacks: Final = ("wire body", "token ids", "batch", "expert routing", "replica")

_LS_PARAMETERS: Final = {
    "ls_model_name": "model",
    "ls_temperature": "temperature",
    "ls_max_tokens": "max_tokens",
    "ls_stop": "stop",
}
_NOT_PARAMETERS: Final = ("_type", "messages", "input", "prompt", "model_kwargs", "extra_headers")


def matches(document: Document) -> bool:
    return any("run_type" in row and "inputs" in row for row in document.sample())


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    for line, row in document.rows:
        if not isinstance(row, Mapping):
            yield Broken(line, "not a JSON object")
        elif row.get("run_type") == "llm":
            yield _exchange(line, row)


def _exchange(line: int, row: Mapping[str, Any]) -> Exchange:
    outputs = obj(maybe_json(row.get("outputs")))
    generation = _generation(outputs)
    metadata = obj(dig(generation, "message_fields", "response_metadata"))
    wrapped = outputs if bodies.family_of(outputs) is not None else None
    body = wrapped if not generation else None
    request = _request(row)
    provider = label(dig(row, "extra", "metadata", "ls_provider"))
    return Exchange(
        line=line,
        id=label(row.get("id")),
        request=request,
        response=body,
        output=None if body is not None else _output(generation, metadata),
        surface=provider_surface(provider) or surface_of(None, request, body),
        factors=_factors(generation, metadata, outputs, provider),
        start_s=epoch_s(row.get("start_time")),
        end_s=epoch_s(row.get("end_time")),
        left_out="the run reports an error" if row.get("error") else None,
        parameters_recorded=_has_parameters(row),
    )


def _has_parameters(row: Mapping[str, Any]) -> bool:
    """A traced function of the user's own has ``run_type`` llm too, and records no parameters;
    wrapped clients record the whole call as inputs."""
    if obj(dig(row, "extra", "invocation_params")):
        return True
    metadata = obj(dig(row, "extra", "metadata"))
    told = metadata.get("ls_temperature") is not None or metadata.get("ls_max_tokens") is not None
    return told or "model" in obj(maybe_json(row.get("inputs")))


def _generation(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The first generation, its message's fields beside it (``kwargs`` when serialised)."""
    found = dig(outputs, "generations", 0)
    one = obj(dig(found, 0)) or obj(found)
    if not one:
        return {}
    message = obj(one.get("message"))
    fields = obj(message.get("kwargs")) or obj(message.get("data")) or message
    return {**one, "message_fields": fields}


def _output(generation: Mapping[str, Any], metadata: Mapping[str, Any]) -> Output:
    fields = obj(generation.get("message_fields"))
    answer = content_text(fields.get("content"))
    if answer is None:
        answer = text(generation.get("text"))
    calls = [(dig(c, "name"), dig(c, "args")) for c in arr(fields.get("tool_calls"))]
    info = obj(first(generation, "generation_info", "generationInfo"))
    reason = first(info, "finish_reason") or first(metadata, "finish_reason", "stop_reason")
    logprobs = first(metadata, "logprobs") or info.get("logprobs")
    return Output(
        text=answer_text(answer, calls),
        finish_reason=text(reason),
        positions=positions(dig(logprobs, "content")),
    )


def _factors(
    generation: Mapping[str, Any],
    metadata: Mapping[str, Any],
    outputs: Mapping[str, Any],
    provider: str | None,
) -> dict[str, Any]:
    usage = obj(dig(generation, "message_fields", "usage_metadata"))
    llm_output = obj(outputs.get("llm_output"))
    cached = dig(usage, "input_token_details", "cache_read")
    if cached is None:
        cached = dig(metadata, "token_usage", "prompt_tokens_details", "cached_tokens")
    found = {
        "system_fingerprint": label(
            first(metadata, "system_fingerprint") or llm_output.get("system_fingerprint")
        ),
        "model_reported": label(
            first(metadata, "model_name", "model") or llm_output.get("model_name")
        ),
        "cached_tokens": integer(cached),
        "provider": label(metadata.get("model_provider")) or provider,
    }
    return {key: value for key, value in found.items() if value is not None}


def _request(row: Mapping[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = {}
    for key, parameter in _LS_PARAMETERS.items():
        value = dig(row, "extra", "metadata", key)
        if value is not None:
            request[parameter] = value
    parameters = obj(dig(row, "extra", "invocation_params"))
    request |= {k: v for k, v in parameters.items() if k not in _NOT_PARAMETERS and v is not None}
    request |= obj(parameters.get("model_kwargs"))
    if "model_name" in request:
        request.setdefault("model", request.pop("model_name"))
    inputs = obj(maybe_json(row.get("inputs")))
    request |= {k: v for k, v in inputs.items() if k not in ("messages", "prompts")}
    messages = inputs.get("messages")
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], list):
        messages = messages[0]
    if messages:
        request["messages"] = [_message(m) for m in arr(messages)] or messages
    elif inputs.get("prompts"):
        request["prompt"] = inputs["prompts"]
    return request


def _message(message: Any) -> Any:
    """A LangChain message as role and content; its random id is no part of the prompt."""
    fields = obj(dig(message, "kwargs")) or obj(dig(message, "data"))
    if not fields:
        return message
    kind = label(fields.get("type")) or label(dig(message, "id", -1)) or label(dig(message, "type"))
    roles = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
    role = (kind or "").lower().removesuffix("chunk").removesuffix("message")
    kept = {k: fields[k] for k in ("content", "tool_calls", "name") if fields.get(k)}
    return {"role": roles.get(role, role), **kept}
