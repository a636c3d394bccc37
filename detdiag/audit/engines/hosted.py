"""Hosted APIs: what is documented about an omitted value, and about a zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from detdiag.audit.engines.base import Effective, Inputs, layered
from detdiag.audit.models import deepseek_thinks, fixed_sampling

DEFAULT_TEMPERATURE: Final[Mapping[str, float]] = {
    "openai": 1.0,
    "azure": 1.0,
    "anthropic": 1.0,
    "cohere": 0.3,
    "deepseek": 1.0,
    "groq": 1.0,
    "fireworks": 1.0,
    "openrouter": 1.0,
    "minimax": 1.0,
}
"""Documented defaults; a provider that is missing here leaves it to the model."""


def resolve(inputs: Inputs, engine: str) -> Effective:
    """Effective parameters as far as the provider documents them."""
    defaults: dict[str, Any] = {}
    if engine in DEFAULT_TEMPERATURE:
        defaults["temperature"] = DEFAULT_TEMPERATURE[engine]
    if engine == "zhipu":
        defaults["do_sample"] = True
    effective = layered([("request", inputs.request), ("provider default", defaults)])
    model = str(inputs.body.get("model") or inputs.body.get("modelId") or "")
    if fixed_sampling(model):
        return effective.decide("sampling", "this model fixes its sampling parameters", "model")
    if engine == "zhipu":
        return _zhipu(effective)
    if engine == "deepseek" and deepseek_thinks(inputs.body):
        return effective.decide("sampling", "thinking mode ignores temperature")
    if engine == "groq" and effective.number("temperature") == 0:
        effective.rewrite("temperature", 1e-8, "the provider converts 0")
        return effective.decide("tie-sampling", "0 becomes 1e-8: formally still sampled")
    temperature = effective.number("temperature")
    if temperature is None:
        return effective.decide("unknown", "the default belongs to the model")
    if temperature > 0 and effective.number("top_k") != 1:
        return effective.decide("sampling", f"temperature {temperature:g} is above 0")
    return effective.decide("greedy", "greedy as far as the provider goes; not guaranteed")


def _zhipu(effective: Effective) -> Effective:
    if effective.truth("do_sample"):
        return effective.decide(
            "sampling", "do_sample is true unless it is sent false", "do_sample"
        )
    return effective.decide("greedy", "do_sample is false")
