"""SGLang: request, preferred parameters, checkpoint, endpoint default; argmax per batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from detdiag.audit.engines.base import Effective, Inputs, Source, layered

BOUNDARIES: Final = ("0.5.3", "0.5.3.post1")
GREEDY_BELOW: Final = 1e-6
FILE_KEYS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def _default_temperature(inputs: Inputs) -> float:
    if "input" in inputs.body and "messages" not in inputs.body:
        return 0.7
    chat = inputs.surface == "sglang.openai_request" and "messages" in inputs.body
    return 0.7 if chat and not inputs.since("0.5.3.post1") else 1.0


def resolve(inputs: Inputs) -> Effective:
    """Effective parameters of one row and whether its batch takes the argmax."""
    sources: list[Source] = [("request", inputs.request)]
    sources.append(
        ("--preferred-sampling-params", _mapping(inputs.flags.get("preferred-sampling-params")))
    )
    if inputs.since("0.5.3.post1") and inputs.flags.get("sampling-defaults", "model") == "model":
        file = {k: v for k, v in (inputs.file or {}).items() if k in FILE_KEYS}
        sources.append(("generation_config.json", file))
    sources.append(
        (
            "SGLang default",
            {
                "temperature": _default_temperature(inputs),
                "top_p": 1.0,
                "top_k": -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
            },
        )
    )
    effective = layered(sources)
    temperature = effective.number("temperature")
    if temperature is None or temperature < 0:
        effective.error = "temperature is refused"
        return effective.decide("unknown", effective.error)
    greedy = temperature < GREEDY_BELOW or effective.number("top_k") == 1
    if not greedy:
        return effective.decide("sampling", f"temperature {temperature:g} is sampled")
    if temperature < GREEDY_BELOW:
        effective.rewrite("temperature", 1.0, "rewritten together with top_k = 1")
        effective.rewrite("top_k", 1, "set by temperature 0")
    if exact(inputs):
        return effective.decide("greedy", "top_k 1 with a sampler that keeps one candidate")
    return effective.decide(
        "greedy", "argmax while the whole batch is greedy; beside a sampled row, ties are drawn"
    )


def exact(inputs: Inputs) -> bool:
    """Whether the launch line rules out drawing among ties in a mixed batch."""
    return bool(
        inputs.switch("enable-deterministic-inference")
        or inputs.flags.get("sampling-backend") == "pytorch"
    )


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None
