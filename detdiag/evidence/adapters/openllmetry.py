"""OpenLLMetry (Traceloop) spans: ``gen_ai.prompt.N.*`` and ``gen_ai.completion.N.*`` attributes,
newer releases ``gen_ai.input.messages``. Seed, n and top_k are not recorded."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from detdiag.evidence.adapters import otel
from detdiag.evidence.adapters.bodies.parts import answer_text
from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.interface import Broken, Exchange
from detdiag.evidence.adapters.shape import first, label, maybe_json, text
from detdiag.evidence.adapters.spans import Span, read_spans, sample_spans
from detdiag.evidence.observation import Output

name: Final = "OpenLLMetry spans"
lacks: Final = ("wire body", "seed", "n", "top_k", "log-probabilities", "token ids", "batch")

_INDEXED: Final = re.compile(r"^gen_ai\.(prompt|completion)\.(\d+)\.(.+)$")
_PARAMETERS: Final = {
    "llm.top_k": "top_k",
    "llm.frequency_penalty": "frequency_penalty",
    "llm.presence_penalty": "presence_penalty",
    "llm.chat.stop_sequences": "stop",
    "llm.request.functions": "tools",
}


def matches(document: Document) -> bool:
    return any(_is_own(span.attributes) for span in sample_spans(document))


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    for span in read_spans(document):
        if otel.is_genai(span.attributes) or _is_own(span.attributes):
            if span.attributes.get("llm.request.type") not in ("embedding", "rerank"):
                yield _read_span(span)


def _is_own(attributes: Mapping[str, Any]) -> bool:
    if "openinference.span.kind" in attributes:
        return False
    return "llm.request.type" in attributes or any(_INDEXED.match(key) for key in attributes)


def _read_span(span: Span) -> Exchange:
    base = otel.read_span(span)
    prompts, completions = (
        _indexed(span.attributes, "prompt"),
        _indexed(span.attributes, "completion"),
    )
    request = dict(base.request or {})
    for spelled, parameter in _PARAMETERS.items():
        if span.attributes.get(spelled) is not None:
            request.setdefault(parameter, maybe_json(span.attributes[spelled]))
    if prompts:
        request["messages"] = [_message(prompt) for prompt in prompts]
    if not completions:
        return replace(base, request=request)
    reason = label(first(completions[0], "finish_reason"))
    told = completions[0]
    output = Output(text=_answer(told), finish_reason=reason)
    bare = Output(text=_answer({**told, "reasoning": None}), finish_reason=reason)
    return replace(
        base, request=request, output=output, bare=bare if told.get("reasoning") else None
    )


def _indexed(attributes: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = defaultdict(dict)
    for key, value in attributes.items():
        match = _INDEXED.match(key)
        if match and match.group(1) == kind:
            found[int(match.group(2)[:9])][match.group(3)] = value
    return [found[index] for index in sorted(found)]


def _message(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: maybe_json(value) for key, value in fields.items()}


def _answer(fields: Mapping[str, Any]) -> str | None:
    calls: dict[str, dict[str, Any]] = defaultdict(dict)
    for key, value in fields.items():
        match = re.match(r"^tool_calls\.(\d+)\.(name|arguments)$", key)
        if match:
            calls[match.group(1)][match.group(2)] = value
    pairs = [(calls[i].get("name"), calls[i].get("arguments")) for i in sorted(calls, key=_order)]
    return answer_text(text(fields.get("content")), pairs, text(fields.get("reasoning")))


def _order(index: str) -> tuple[int, str]:
    return len(index), index
