"""vLLM: request, launch override, checkpoint file (six keys), built-in default; then the clamp."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from detdiag.audit.engines.base import Effective, Inputs, Source, layered

BOUNDARIES: Final = ("0.5.5", "0.8.0")
GREEDY_BELOW: Final = 1e-5
SMALLEST: Final = 0.01
FILE_KEYS: Final = (
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "max_new_tokens",
)
DEFAULTS: Final = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "n": 1,
}


def file_mode(inputs: Inputs) -> str:
    """The value of ``--generation-config`` in force: ``auto``, ``vllm`` or a folder."""
    given = inputs.flags.get("generation-config")
    if isinstance(given, str):
        return given
    return "auto" if inputs.since("0.8.0") else "vllm"


def resolve(inputs: Inputs) -> Effective:
    """Effective SamplingParams of one request."""
    override = inputs.flags.get("override-generation-config")
    sources: list[Source] = [("request", inputs.request)]
    if inputs.surface != "vllm.sampling_params" and not _explicit_offline(inputs):
        sources.append(("--override-generation-config", _renamed(override)))
        if file_mode(inputs) != "vllm":
            sources.append(("generation_config.json", _renamed(inputs.file)))
    effective = layered([*sources, ("vLLM default", DEFAULTS)])
    temperature = effective.number("temperature")
    if temperature is None:
        return effective.decide("unknown", "temperature is not a number")
    if 0 < temperature < SMALLEST and inputs.since("0.5.5"):
        effective.rewrite("temperature", SMALLEST, "raised to 0.01 before the greedy test")
        return effective.decide("sampling", "a tiny temperature is raised to 0.01, then sampled")
    if temperature < 0:
        effective.error = "a negative temperature is refused"
        return effective.decide("unknown", effective.error)
    if temperature >= GREEDY_BELOW:
        return effective.decide("sampling", f"temperature {temperature:g} is at least 1e-5")
    for name, neutral in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        if effective.params[name].value != neutral:
            effective.rewrite(name, neutral, "neutral when greedy")
    return effective.decide("greedy", "temperature below 1e-5 takes the argmax")


def _explicit_offline(inputs: Inputs) -> bool:
    """An own SamplingParams object offline does not consult the checkpoint."""
    return inputs.surface == "vllm.offline" and bool(inputs.request)


def _renamed(values: Any) -> dict[str, Any] | None:
    if not isinstance(values, Mapping):
        return None
    kept = {k: values[k] for k in FILE_KEYS if k in values}
    if "max_new_tokens" in kept:
        kept["max_tokens"] = kept.pop("max_new_tokens")
    return kept
