"""Response bodies of inference servers and hosted models, read into :class:`Output`.

One module a family; each has ``matches(body)`` and ``outputs(body)`` (one output per choice).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from detdiag.evidence.adapters.bodies import (
    anthropic,
    bedrock,
    cohere,
    gemini,
    llamacpp,
    ollama,
    openai,
    plain,
    responses,
    sglang,
    tgi,
)
from detdiag.evidence.observation import Output


class Family(NamedTuple):
    """``name`` is what a person calls the shape."""

    name: str
    matches: Callable[[Mapping[str, Any]], bool]
    outputs: Callable[[Mapping[str, Any]], list[Output]]


FAMILIES: Final[tuple[Family, ...]] = (
    Family("OpenAI chat or completions", openai.matches, openai.outputs),
    Family("OpenAI Responses", responses.matches, responses.outputs),
    Family("Anthropic Messages", anthropic.matches, anthropic.outputs),
    Family("Gemini generateContent", gemini.matches, gemini.outputs),
    Family("SGLang /generate", sglang.matches, sglang.outputs),
    Family("Bedrock Converse or InvokeModel", bedrock.matches, bedrock.outputs),
    Family("Ollama", ollama.matches, ollama.outputs),
    Family("llama.cpp /completion", llamacpp.matches, llamacpp.outputs),
    Family("TGI /generate", tgi.matches, tgi.outputs),
    Family("Cohere", cohere.matches, cohere.outputs),
    Family("a message or a text", plain.matches, plain.outputs),
)


def family_of(body: Any) -> Family | None:
    """The first family whose shape ``body`` has; None for errors and unknown shapes."""
    if not isinstance(body, Mapping) or is_error(body):
        return None
    return next((family for family in FAMILIES if family.matches(body)), None)


def is_error(body: Mapping[str, Any]) -> bool:
    """Whether a server reported a failure instead of an answer."""
    return bool(body.get("error")) or body.get("type") == "error" or body.get("object") == "error"


def outputs(body: Any) -> list[Output]:
    """One output per choice of a decoded response body; empty for errors and unknown shapes."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    if isinstance(body, str):
        return [Output(text=body)]
    family = family_of(body)
    return [] if family is None else family.outputs(body)
