"""Ollama, TGI, TensorRT-LLM, LMDeploy, MLC and ExLlamaV2: short resolution orders."""

from __future__ import annotations

from typing import Any, Final

from detdiag.audit.engines.base import Effective, Inputs, Source, layered

OLLAMA_BOUNDARIES: Final = ("0.32.10",)
LMDEPLOY_BOUNDARIES: Final = ("0.7.1", "0.15.0")


def _plain(effective: Effective, greedy_why: str) -> Effective:
    temperature = effective.number("temperature")
    if temperature is None:
        return effective.decide("unknown", "temperature is not a number")
    if temperature > 0:
        return effective.decide("sampling", f"temperature {temperature:g} is above 0")
    return effective.decide("greedy", greedy_why)


def ollama(inputs: Inputs) -> Effective:
    """Request options over Modelfile over defaults; the OpenAI route injects 1.0 first."""
    penalty = 1.0 if inputs.since("0.32.10") else 1.1
    sources: list[Source] = [("request", inputs.request)]
    if inputs.surface == "ollama.openai_api":
        sources.append(("injected by the OpenAI route", {"temperature": 1.0, "top_p": 1.0}))
    sources.append(("Modelfile", inputs.modelfile))
    defaults = {
        "temperature": 0.8,
        "top_k": 40,
        "top_p": 0.9,
        "seed": -1,
        "repetition_penalty": penalty,
    }
    return _plain(layered([*sources, ("Ollama default", defaults)]), "temperature 0 is greedy")


def tgi(inputs: Inputs) -> Effective:
    """Sampling is ``do_sample or any active warper``; chat maps an exact 0.0 to do_sample false."""
    chat = inputs.surface != "tgi.generate"
    effective = layered([("request", inputs.request)])
    temperature = effective.number("temperature")
    if chat:
        zero = temperature == 0.0
        effective.rewrite("do_sample", not zero, "set by the chat route from temperature")
        if zero:
            effective.rewrite("temperature", None, "an exact 0.0 is unset by the chat route")
    else:
        if inputs.has_request and not isinstance(inputs.body.get("parameters"), dict):
            effective.rewrite("do_sample", True, "no parameters object was sent")
        elif "do_sample" not in effective.params:
            effective.rewrite("do_sample", False, "TGI default")
        if temperature is not None and temperature <= 0:
            effective.error = "a temperature that is not above 0 is refused"
            return effective.decide("unknown", effective.error)
    if effective.truth("do_sample"):
        if chat:
            return effective.decide("sampling", "any temperature but an exact 0.0 samples")
        return effective.decide("sampling", "do_sample is true", "do_sample")
    warper = _active_warper(effective)
    if warper:
        return effective.decide("sampling", f"{warper} is active, which samples", warper)
    return effective.decide("greedy", "do_sample false and no warper")


def _active_warper(effective: Effective) -> str | None:
    for name in ("top_p", "typical_p"):
        value = effective.number(name)
        if value is not None and value < 1:
            return name
    if (effective.number("top_k") or 0) > 0:
        return "top_k"
    temperature = effective.number("temperature")
    return "temperature" if temperature not in (None, 1.0) else None


def tensorrt(inputs: Inputs) -> Effective:
    """Greedy when nothing is set (Python API), or top_k 1, top_p 0 or temperature 0."""
    sources: list[Source] = [("request", inputs.request)]
    if inputs.surface != "tensorrtllm.llm_api":
        sources.append(("trtllm-serve default", {"temperature": 1.0, "top_p": 1.0}))
    effective = layered(sources)
    sampling = [n for n in ("temperature", "top_p", "top_k") if n in effective.params]
    if not sampling:
        return effective.decide("greedy", "temperature, top_p and top_k are all unset")
    if (
        effective.number("top_k") == 1
        or effective.number("top_p") == 0
        or effective.number("temperature") == 0
    ):
        return effective.decide("greedy", "one of top_k 1, top_p 0 and temperature 0 implies it")
    return effective.decide("sampling", "a sampling parameter is set", sampling[0])


def lmdeploy(inputs: Inputs) -> Effective:
    """Server: checkpoint defaults since 0.15; TurboMind divides by T + 1e-6 and still draws."""
    if inputs.surface == "lmdeploy.pipeline":
        effective = layered([("call", inputs.request), ("LMDeploy default", {"do_sample": False})])
        if effective.truth("do_sample"):
            return effective.decide("sampling", "do_sample is true", "do_sample")
        return effective.decide("greedy", "do_sample is false, top_k is forced to 1")
    sources: list[Source] = [("request", inputs.request)]
    if inputs.since("0.15.0"):
        if inputs.flags.get("generation-config", "auto") == "auto":
            sources.append(("generation_config.json", inputs.file))
        defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": 50}
    else:
        defaults = {"temperature": 0.7, "top_p": 1.0, "top_k": 40}
    effective = layered([*sources, ("LMDeploy default", defaults)])
    effective.params.pop("do_sample", None)
    if (effective.number("temperature") or 0) < 0:
        effective.rewrite("temperature", 1.0, "a negative value is put back to 1.0")
    if (effective.number("temperature") or 0) > 0 and effective.number("top_k") != 1:
        return _plain(effective, "")
    return _lmdeploy_zero(inputs, effective)


def _lmdeploy_zero(inputs: Inputs, effective: Effective) -> Effective:
    backend = str(inputs.flags.get("backend", "turbomind"))
    if inputs.surface == "lmdeploy.pytorch" or backend == "pytorch":
        if inputs.since("0.7.1"):
            return effective.decide("greedy", "the PyTorch engine rewrites 0 to top_k 1")
        effective.rewrite("temperature", 1e-6, "the PyTorch engine of this version")
        return effective.decide("tie-sampling", "0 becomes 1e-6, which still draws among ties")
    if effective.number("top_k") == 1:
        return effective.decide("greedy", "top_k 1 leaves one candidate")
    return effective.decide(
        "tie-sampling", "TurboMind divides by T + 1e-6 and draws: exact ties are random"
    )


def mlc(inputs: Inputs) -> Effective:
    """MLC: below 1e-5 the mass spreads evenly over tied maxima; the GPU sampler draws."""
    effective = layered(
        [("request", inputs.request), ("MLC default", {"temperature": 1.0, "top_p": 1.0})]
    )
    temperature = effective.number("temperature")
    if temperature is not None and temperature < 1e-5:
        return effective.decide("tie-sampling", "tied maxima share the mass and the GPU draws")
    return _plain(effective, "")


def exllama(inputs: Inputs) -> Effective:
    """ExLlamaV2: below 0.01 becomes top_k 1 unless temperature_last is set."""
    defaults = {"temperature": 0.8, "top_k": 50, "top_p": 0.8, "repetition_penalty": 1.025}
    given: dict[str, Any] = {
        {"temp": "temperature"}.get(k, k.replace("-", "_")): v for k, v in inputs.flags.items()
    }
    effective = layered(
        [("settings", inputs.request), ("launch line", given), ("ExLlamaV2 default", defaults)]
    )
    temperature = effective.number("temperature")
    if effective.number("top_k") == 1:
        return effective.decide("greedy", "top_k is 1")
    if temperature is None or temperature >= 0.01:
        return effective.decide("sampling", "temperature is 0.01 or above")
    if effective.truth("temperature_last"):
        return effective.decide("unknown", "temperature_last skips the greedy shortcut")
    return effective.decide("greedy", "a temperature below 0.01 becomes top_k 1")
