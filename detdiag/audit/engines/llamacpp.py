"""llama.cpp server: a chain of samplers in which temperature is one link."""

from __future__ import annotations

from typing import Any, Final

from detdiag.audit.engines.base import Effective, Inputs, Source, layered

BOUNDARIES: Final = ("b4170", "b6927", "b7151")
DEFAULTS: Final = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "typical_p": 1.0,
    "seed": -1,
    "repetition_penalty": 1.0,
    "dynatemp_range": 0.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "mirostat": 0,
}
_FLAG_NAMES: Final = {
    "temp": "temperature",
    "repeat-penalty": "repetition_penalty",
    "typical": "typical_p",
    "mirostat": "mirostat",
    "samplers": "samplers",
    "sampling-seq": "samplers",
}


_SAMPLING: Final = frozenset(
    "temp top-k top-p min-p typical seed repeat-penalty presence-penalty frequency-penalty "
    "dynatemp-range xtc-probability xtc-threshold mirostat samplers sampling-seq dry-multiplier "
    "adaptive-target cache-prompt predict".split()
)


def flag_values(flags: Any) -> dict[str, Any]:
    """Sampling flags of the launch line by common parameter name."""
    return {_FLAG_NAMES.get(k, k.replace("-", "_")): v for k, v in flags.items() if k in _SAMPLING}


def names_temperature(samplers: Any) -> bool:
    """Whether a samplers list (names, ``;`` string or letter string) holds temperature."""
    if isinstance(samplers, list):
        return any(str(item).lower() in ("temperature", "temp") for item in samplers)
    text = str(samplers).lower()
    return "temp" in text or (";" not in text and "_" not in text and "t" in text)


def resolve(inputs: Inputs) -> Effective:
    """Effective sampler settings of one request."""
    sources: list[Source] = [
        ("request", inputs.request),
        ("launch line", flag_values(inputs.flags)),
        ("llama.cpp default", DEFAULTS),
    ]
    effective = layered(sources)
    temperature = effective.number("temperature")
    if temperature is None:
        return effective.decide("unknown", "temperature is not a number")
    if temperature > 0:
        return effective.decide("sampling", f"temperature {temperature:g} is above 0")
    samplers = effective.params.get("samplers")
    if samplers is not None and not names_temperature(samplers.value):
        return effective.decide("sampling", "the samplers list has no temperature step", "samplers")
    if (effective.number("dynatemp_range") or 0) > 0:
        return effective.decide(
            "sampling", "dynamic temperature raises it again at uncertain steps", "dynatemp_range"
        )
    if (effective.number("xtc_probability") or 0) > 0 and (
        effective.number("xtc_threshold") or 0
    ) <= 0.5:
        return effective.decide(
            "sampling", "XTC removes top candidates at random before temperature", "xtc_probability"
        )
    if (
        samplers is not None
        and "adaptive" in str(samplers.value)
        and (effective.number("adaptive_target") or 0) >= 0
    ):
        return effective.decide("sampling", "adaptive-p draws the token", "samplers")
    return effective.decide("greedy", "temperature at or below 0 keeps the first maximum alone")


def resolve_python(inputs: Inputs) -> Effective:
    """llama-cpp-python: exactly 0 is greedy, below 0 draws from the unscaled distribution."""
    chat = "messages" in inputs.body
    default = {
        "temperature": 0.2 if chat else 0.8,
        "top_p": 0.95,
        "top_k": 40,
        "min_p": 0.05,
        "repetition_penalty": 1.0,
    }
    effective = layered([("request", inputs.request), ("llama-cpp-python default", default)])
    temperature = effective.number("temperature")
    if temperature is None:
        return effective.decide("unknown", "temperature is not a number")
    if temperature == 0:
        return effective.decide("greedy", "temperature exactly 0 is greedy")
    if temperature < 0:
        return effective.decide("sampling", "a negative temperature draws without scaling")
    return effective.decide("sampling", f"temperature {temperature:g} is above 0")
