"""OpenInference spans (Arize Phoenix): ``llm.*`` attributes, raw reply in ``output.value``."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from detdiag.evidence.adapters import bodies
from detdiag.evidence.adapters.bodies.parts import answer_text, openai_calls
from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.factors import response_factors
from detdiag.evidence.adapters.interface import Broken, Exchange
from detdiag.evidence.adapters.shape import (
    content_text,
    first,
    integer,
    label,
    maybe_json,
    obj,
)
from detdiag.evidence.adapters.spans import Span, read_spans, sample_spans
from detdiag.evidence.adapters.surfaces import provider_surface
from detdiag.evidence.observation import Output

name: Final = "OpenInference spans"
lacks: Final = ("wire body", "batch", "expert routing")

_MESSAGE: Final = re.compile(r"^llm\.(input|output)_messages\.(\d+)\.message\.(.+)$")
_CALL: Final = re.compile(r"^tool_calls\.(\d+)\.tool_call\.function\.(name|arguments)$")
_CONTENT: Final = re.compile(r"^contents\.(\d+)\.message_content\.text$")


def matches(document: Document) -> bool:
    return any(is_llm(span.attributes) for span in sample_spans(document))


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    for span in read_spans(document):
        if is_llm(span.attributes):
            yield read_span(span)


def is_llm(attributes: Mapping[str, Any]) -> bool:
    kind = attributes.get("openinference.span.kind")
    if kind is not None:
        return str(kind).upper() == "LLM"
    return "llm.invocation_parameters" in attributes or any(_MESSAGE.match(k) for k in attributes)


def read_span(span: Span) -> Exchange:
    attributes = span.attributes
    raw = maybe_json(attributes.get("output.value"))
    body = raw if bodies.family_of(raw) is not None else None
    provider = label(first(attributes, "llm.provider", "llm.system"))
    return Exchange(
        line=span.line,
        id=span.span_id,
        request=_request(attributes),
        response=body,
        output=None if body is not None else _output(attributes, raw),
        surface=provider_surface(provider),
        factors=_factors(attributes, body, provider),
        start_s=span.start_s,
        end_s=span.end_s,
        left_out="the span reports an error" if span.failed else None,
        parameters_recorded=_has_parameters(attributes),
    )


def _has_parameters(attributes: Mapping[str, Any]) -> bool:
    """``llm.invocation_parameters``, or the whole call as ``input.value``."""
    if attributes.get("llm.invocation_parameters") is not None:
        return True
    return "model" in obj(maybe_json(attributes.get("input.value")))


def _factors(attributes: Mapping[str, Any], body: Any, provider: str | None) -> dict[str, Any]:
    cached = integer(attributes.get("llm.token_count.prompt_details.cache_read"))
    # ``llm.model_name`` is the model of the reply where the instrumentation saw one.
    found = {"provider": provider, "cached_tokens": cached, **response_factors(body)}
    return {key: value for key, value in found.items() if value is not None}


def _request(attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    raw = obj(maybe_json(attributes.get("input.value")))
    if any(key in raw for key in ("messages", "prompt", "contents", "input")) and "model" in raw:
        return dict(raw)
    request: dict[str, Any] = {}
    parameters = obj(maybe_json(attributes.get("llm.invocation_parameters")))
    request |= {k: v for k, v in parameters.items() if k not in ("messages", "extra_headers")}
    model = label(attributes.get("llm.model_name"))
    if model is not None:
        request.setdefault("model", model)
    messages = _messages(attributes, "input")
    if messages:
        request["messages"] = messages
    elif raw.get("messages"):
        request["messages"] = raw["messages"]
    elif isinstance(attributes.get("input.value"), str):
        request["prompt"] = attributes["input.value"]
    tools = [v for k, v in sorted(attributes.items()) if re.match(r"^llm\.tools\.\d+\.", k)]
    if tools:
        request["tools"] = [maybe_json(tool) for tool in tools]
    return request or None


def _messages(attributes: Mapping[str, Any], side: str) -> list[dict[str, Any]]:
    """Messages from ``llm.input_messages.0.message.role`` and its siblings, in index order."""
    nested = maybe_json(attributes.get(f"llm.{side}_messages"))
    if isinstance(nested, list):
        return [_nested(obj(m)) for m in nested]
    found: dict[int, dict[str, Any]] = defaultdict(dict)
    for key, value in attributes.items():
        match = _MESSAGE.match(key)
        if match and match.group(1) == side:
            found[int(match.group(2)[:9])][match.group(3)] = value
    return [_folded(found[index]) for index in sorted(found)]


def _nested(message: Mapping[str, Any]) -> dict[str, Any]:
    """One message of a list: ``{"message": {"role": ...}}``, or a table's ``message.role``."""
    inner = obj(message.get("message")) or message
    return {key.removeprefix("message."): value for key, value in inner.items()}


def _folded(message: Mapping[str, Any]) -> dict[str, Any]:
    """Indexed tool calls and content parts of one message as lists."""
    out: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = defaultdict(dict)
    parts: dict[int, Any] = {}
    for key, value in message.items():
        if call := _CALL.match(key):
            calls[int(call.group(1)[:9])][call.group(2)] = value
        elif part := _CONTENT.match(key):
            parts[int(part.group(1)[:9])] = value
        elif not key.startswith(("tool_calls.", "contents.")):
            out[key] = value
    if parts and "content" not in out:
        out["content"] = [{"type": "text", "text": parts[i]} for i in sorted(parts)]
    if calls:
        out["tool_calls"] = [{"function": calls[i]} for i in sorted(calls)]
    return out


def _output(attributes: Mapping[str, Any], raw: Any) -> Output:
    messages = _messages(attributes, "output")
    if messages:
        answer = content_text(messages[0].get("content"))
        return Output(text=answer_text(answer, openai_calls(messages[0].get("tool_calls"))))
    found = bodies.outputs(raw)
    return found[0] if found else Output()
