"""OpenTelemetry GenAI spans, attribute names before and after semantic conventions 1.37."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from detdiag.evidence.adapters.bodies.parts import answer_text, openai_calls
from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.interface import Broken, Exchange
from detdiag.evidence.adapters.shape import (
    arr,
    content_text,
    dig,
    first,
    integer,
    label,
    maybe_json,
    obj,
    text,
)
from detdiag.evidence.adapters.spans import Span, read_spans, sample_spans
from detdiag.evidence.adapters.surfaces import provider_surface
from detdiag.evidence.observation import Output

name: Final = "OpenTelemetry GenAI spans"
lacks: Final = ("wire body", "log-probabilities", "token ids", "batch", "expert routing")

FINGERPRINTS: Final = (
    "gen_ai.openai.response.system_fingerprint",
    "openai.response.system_fingerprint",
    "gen_ai.openai.system_fingerprint",
    "gen_ai.response.system_fingerprint",
)
"""The spellings in use: conventions up to 1.36, from 1.37, OpenLLMetry, LangSmith's exporter."""

CACHED: Final = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.details.cache_read_tokens",
)
_PARAMETERS: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_tokens",
    "seed": "seed",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "stop_sequences": "stop",
    "choice.count": "n",
}
_OTHER_OPERATIONS: Final = frozenset(
    {"embeddings", "execute_tool", "invoke_agent", "create_agent", "rerank", "retrieval"}
)
_ROLES: Final = ("system", "user", "assistant", "tool")


def matches(document: Document) -> bool:
    return any(is_genai(span.attributes) for span in sample_spans(document))


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    for span in read_spans(document):
        if is_genai(span.attributes):
            yield read_span(span)


def is_genai(attributes: Mapping[str, Any]) -> bool:
    """Whether a span is one call to a model (and not an agent, a tool or an embedding)."""
    return not is_other(attributes) and any(
        key.startswith(("gen_ai.request.", "gen_ai.response.")) for key in attributes
    )


def is_other(attributes: Mapping[str, Any]) -> bool:
    """Whether the operation is known to be something else than a call to a model."""
    return attributes.get("gen_ai.operation.name") in _OTHER_OPERATIONS


def read_span(span: Span) -> Exchange:
    attributes = span.attributes
    provider = label(first(attributes, "gen_ai.provider.name", "gen_ai.system"))
    output, bare = _output(span), _output(span, reasoning=False)
    return Exchange(
        line=span.line,
        id=span.span_id,
        request=_request(span),
        response=_reply_facts(attributes),
        output=output,
        bare=bare if bare != output else None,
        surface=provider_surface(provider),
        factors=span_factors(attributes, provider),
        replica=span_replica(attributes),
        start_s=span.start_s,
        end_s=span.end_s,
        left_out="the span reports an error" if span.failed else None,
    )


def span_factors(attributes: Mapping[str, Any], provider: str | None) -> dict[str, Any]:
    found = {
        "system_fingerprint": label(first(attributes, *FINGERPRINTS)),
        "model_reported": label(attributes.get("gen_ai.response.model")),
        "provider": provider,
        "cached_tokens": integer(first(attributes, *CACHED)),
    }
    return {key: value for key, value in found.items() if value is not None}


def span_replica(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Server address with its port, and the service tier, which routes to another pool."""
    found: dict[str, str] = {}
    address = label(first(attributes, "server.address", "gen_ai.openai.api_base"))
    port = label(attributes.get("server.port"))
    if address is not None:
        found["server"] = address if port is None else f"{address}:{port}"
    tier = label(
        first(attributes, "openai.response.service_tier", "gen_ai.openai.response.service_tier")
    )
    if tier is not None:
        found["service tier"] = tier
    return found


def _reply_facts(attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a span keeps of the body beside the answer: its id and the token counts."""
    usage = {
        "prompt_tokens": integer(attributes.get("gen_ai.usage.input_tokens")),
        "completion_tokens": integer(attributes.get("gen_ai.usage.output_tokens")),
    }
    usage = {key: value for key, value in usage.items() if value is not None}
    found: dict[str, Any] = {"usage": usage} if usage else {}
    ident = label(attributes.get("gen_ai.response.id"))
    if ident is not None:
        found["id"] = ident
    return found or None


def request_parameters(attributes: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        name: attributes.get(f"gen_ai.request.{spelled}") for spelled, name in _PARAMETERS.items()
    }
    return {key: value for key, value in found.items() if value is not None}


def _request(span: Span) -> dict[str, Any]:
    attributes = span.attributes
    request: dict[str, Any] = {}
    model = label(attributes.get("gen_ai.request.model"))
    if model is not None:
        request["model"] = model
    request |= request_parameters(attributes)
    for key, field in (
        ("gen_ai.system_instructions", "system"),
        ("gen_ai.input.messages", "messages"),
        ("gen_ai.tool.definitions", "tools"),
    ):
        found = maybe_json(_from_span_or_event(span, key))
        if found:
            request[field] = found
    if "messages" not in request:
        spelled = ("gen_ai.prompt", "ai.prompt.messages")
        kept = [maybe_json(_from_span_or_event(span, name)) for name in spelled]
        messages = _event_messages(span) or next((m for m in kept if m), [])
        if messages:
            request["messages" if isinstance(messages, list) else "prompt"] = messages
    return request


def _from_span_or_event(span: Span, key: str) -> Any:
    """Content is on the span, or on an event of it such as
    ``gen_ai.client.inference.operation.details`` or the older ``gen_ai.content.prompt``."""
    if span.attributes.get(key) is not None:
        return span.attributes[key]
    for _, attributes, body in span.events:
        found = attributes.get(key, obj(body).get(key))
        if found is not None:
            return found
    return None


def _event_messages(span: Span) -> list[dict[str, Any]]:
    """Conventions up to 1.36: one event a message, ``gen_ai.user.message`` and its kin."""
    found: list[dict[str, Any]] = []
    for event, attributes, body in span.events:
        role = event.removeprefix("gen_ai.").removesuffix(".message")
        if event == f"gen_ai.{role}.message" and role in _ROLES:
            content = {**attributes, **obj(maybe_json(body))}
            kept: dict[str, Any] = {
                k: maybe_json(content[k]) for k in ("content", "tool_calls", "id") if k in content
            }
            found.append({"role": text(content.get("role")) or role, **kept})
    return found


def _output(span: Span, *, reasoning: bool = True) -> Output:
    reasons = maybe_json(span.attributes.get("gen_ai.response.finish_reasons"))
    reason = label(dig(reasons, 0)) if isinstance(reasons, list) else label(reasons)
    messages = maybe_json(_from_span_or_event(span, "gen_ai.output.messages"))
    if isinstance(messages, list) and messages:
        return Output(
            text=message_text(messages[0], reasoning=reasoning),
            finish_reason=reason or text(dig(messages, 0, "finish_reason")),
        )
    for event, attributes, body in span.events:
        if event == "gen_ai.choice":
            content = {**attributes, **obj(maybe_json(body))}
            return Output(
                text=message_text(maybe_json(content.get("message", content)), reasoning=reasoning),
                finish_reason=reason or text(content.get("finish_reason")),
            )
    if isinstance(span.attributes.get("ai.response.text"), str):  # Vercel AI SDK
        calls = openai_calls(maybe_json(span.attributes.get("ai.response.toolCalls")))
        return Output(answer_text(span.attributes["ai.response.text"], calls), finish_reason=reason)
    completion = maybe_json(_from_span_or_event(span, "gen_ai.completion"))
    if isinstance(completion, list):
        completion = dig(completion, 0)
    return Output(text=message_text(completion, reasoning=reasoning), finish_reason=reason)


def message_text(message: Any, *, reasoning: bool = True) -> str | None:
    """The answer of one recorded message: content, or parts of text, reasoning and tool calls."""
    if isinstance(message, str):
        return message
    parts = [obj(part) for part in arr(obj(message).get("parts"))]
    if not parts:
        answer = content_text(maybe_json(obj(message).get("content")))
        return answer_text(answer, openai_calls(maybe_json(obj(message).get("tool_calls"))))
    return answer_text(
        _joined(parts, "text"),
        [(p.get("name"), p.get("arguments")) for p in parts if p.get("type") == "tool_call"],
        _joined(parts, "reasoning") if reasoning else None,
    )


def _joined(parts: Sequence[Mapping[str, Any]], kind: str) -> str | None:
    found = [content_text(p.get("content")) for p in parts if p.get("type") == kind]
    texts = [t for t in found if t is not None]
    return "".join(texts) if texts else None
