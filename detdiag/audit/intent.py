"""Intent against wire: parameters that the calling code set and the request lost or changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from detdiag.audit.document import Document
from detdiag.audit.facts import view_request
from detdiag.audit.infer import PARAMETERS
from detdiag.audit.jsontext import paths
from detdiag.audit.surfaces import SURFACES, Surface, common_name
from detdiag.evidence.finding import Finding, Remedy
from detdiag.rules.condition import number, same
from detdiag.rules.model import severity_of

_SYNONYMS: Final = {
    "topP": "top_p",
    "topK": "top_k",
    "maxTokens": "max_tokens",
    "maxOutputTokens": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "num_predict": "max_tokens",
    "n_predict": "max_tokens",
    "random_seed": "seed",
    "sampling_seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "stopSequences": "stop",
    "stop_sequences": "stop",
    "frequencyPenalty": "frequency_penalty",
    "presencePenalty": "presence_penalty",
    "candidateCount": "n",
    "temp": "temperature",
}
_COMPARED: Final = PARAMETERS | {"model", "reasoning_effort", "logprobs", "top_logprobs"}


def compare_intent(intent: Document, request: Document) -> list[Finding]:
    """One finding per parameter of ``intent`` that ``request`` lacks or carries differently."""
    surface = SURFACES[request.surface or "any.request"]
    view = view_request(surface, request.data)
    wire = {canonical(surface, name): value for name, value in view.values.items()}
    wire.setdefault("model", request.data.get("model", request.data.get("modelId")))
    meant = {canonical(surface, name): value for name, value in _meant(intent.data).items()}
    findings = []
    for name, value in meant.items():
        if name not in _COMPARED and canonical(surface, name) not in _COMPARED:
            continue
        if _kept(name, value, wire, surface, meant):
            continue
        findings.append(_finding(name, value, wire.get(name), surface, intent, request))
    return findings


def canonical(surface: Surface, name: str) -> str:
    """The common name of a parameter however code or wire spells it."""
    common = common_name(surface, name)
    return _SYNONYMS.get(common, common)


def _meant(data: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of the intent, flattened over the containers that SDKs use."""
    flat: dict[str, Any] = {}
    for path, value in paths(dict(data)):
        if path and not isinstance(value, dict) and value is not None:
            flat.setdefault(str(path[-1]), value)
    return flat


def _kept(
    name: str, value: Any, wire: Mapping[str, Any], surface: Surface, meant: Mapping[str, Any]
) -> bool:
    sent = wire.get(name)
    if sent is not None and same(sent, value):
        return True
    if name == "temperature" and number(value) == 0 and wire.get("do_sample") is False:
        return True  # The client chose the provider's own greedy switch.
    if name == "do_sample" and value is False and number(wire.get("temperature")) == 0:
        return True
    return isinstance(value, (list, str)) and name == "stop" and _stops(sent) == _stops(value)


def _stops(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _finding(
    name: str, value: Any, sent: Any, surface: Surface, intent: Document, request: Document
) -> Finding:
    own = surface.spelling.get(name, name)
    lost = sent is None
    fault = _fault(name, value, surface, request) if lost else f"the wire carries {sent!r}"
    dangerous = name in ("temperature", "do_sample", "top_k", "top_p", "seed")
    return Finding(
        layer="config",
        rule="config.lost-on-the-wire" if lost else "config.changed-on-the-wire",
        outcome="failed" if dangerous else "inconclusive",
        summary=f"the code set {own} = {value!r}, but {fault}",
        severity=severity_of("ignored_parameter", own),
        kind="ignored_parameter",
        subject=own,
        surface=surface.name,
        remedy=Remedy(
            f"make the client send {own} = {value!r} and log the outgoing body",
            verify="capture the request again and audit it beside the intent",
        ),
        where=request.where(),
        data={
            "rule_id": "config.lost-on-the-wire" if lost else "config.changed-on-the-wire",
            "intended": value,
            "sent": sent,
            "intent": intent.path,
        },
    )


def _fault(name: str, value: Any, surface: Surface, request: Document) -> str:
    """The known client fault that fits best."""
    elsewhere = [
        path
        for path, found in paths(dict(request.data))
        if path
        and canonical(surface, str(path[-1])) == name
        and same(found, value)
        and "messages" not in path
        and "tools" not in path
    ]
    if elsewhere:
        return f"it sits under {'.'.join(map(str, elsewhere[0]))}, where it is not read"
    if value is False or value == 0:
        return "the body leaves it out: a falsy value was dropped before the wire"
    return "the body leaves it out"
