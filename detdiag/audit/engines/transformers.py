"""Hugging Face transformers: keyword, passed object, checkpoint file, library default.

The merge changed three times (4.50, 5.0); :func:`detdiag.probes.config` asks the installed
library itself, this module answers for recorded evidence and other versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from detdiag.audit.engines.base import Effective, Inputs, Source, layered
from detdiag.errors import DetdiagError
from detdiag.rules.condition import number
from detdiag.rules.versions import version_key

BOUNDARIES: Final = ("4.50.0", "5.0.0", "4.52.1")
DEFAULTS: Final = {
    "do_sample": False,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "num_beams": 1,
    "repetition_penalty": 1.0,
}
_NOT_PARAMETERS: Final = frozenset(
    "transformers_version _from_model_config eos_token_id bos_token_id pad_token_id "
    "generation_config use_model_defaults".split()
)
PIPELINE_DEFAULTS: Final = {"do_sample": True, "temperature": 0.7, "max_new_tokens": 256}


def resolve(inputs: Inputs) -> Effective:
    """Effective generation parameters of one call."""
    if inputs.surface == "hf.serve":
        return _serve(inputs)
    file = _parameters(inputs.file)
    call = _parameters(inputs.call)
    sources: list[Source] = [("keyword", call)]
    if inputs.passed is None:
        sources.append(("generation_config.json", file))
    else:
        sources.extend(_object_sources(inputs, file))
    if inputs.surface == "hf.pipeline" and inputs.since("4.52.1"):
        sources.append(("pipeline default", PIPELINE_DEFAULTS))
    effective = layered([*sources, ("library default", DEFAULTS)])
    if "do_sample" not in call and _zero_special_case(inputs, file):
        effective.rewrite("do_sample", False, "temperature 0.0 in the object forces greedy")
    return judge(effective)


def _parameters(values: Mapping[str, Any] | None) -> dict[str, Any]:
    return {k: v for k, v in (values or {}).items() if k not in _NOT_PARAMETERS}


def _object_sources(inputs: Inputs, file: Mapping[str, Any]) -> list[Source]:
    passed = _parameters(inputs.passed)
    if inputs.since("5.0.0"):
        return [("GenerationConfig object", passed), ("generation_config.json", file)]
    if not merge_active(inputs):
        return [("GenerationConfig object", passed)]
    differing = {k: v for k, v in passed.items() if k not in DEFAULTS or v != DEFAULTS[k]}
    equal = {k: v for k, v in passed.items() if k not in differing}
    return [
        ("GenerationConfig object", differing),
        ("generation_config.json", file),
        ("GenerationConfig object (equal to the library default)", equal),
    ]


def merge_active(inputs: Inputs) -> bool:
    """Whether 4.50 to 4.x fills an object from the checkpoint file."""
    wanted = inputs.call.get("use_model_defaults")
    if inputs.passed is not None and wanted is None:
        wanted = inputs.passed.get("use_model_defaults")
    if not inputs.since("4.50.0") or inputs.since("5.0.0") or wanted is False:
        return False
    return wanted is True or saved_since_450(inputs.file)


def saved_since_450(file: Mapping[str, Any] | None) -> bool:
    """Whether the checkpoint file says it was written by 4.50 or later."""
    try:
        return version_key(str((file or {}).get("transformers_version", ""))) >= version_key(
            "4.50.0"
        )
    except DetdiagError:
        return False


def _zero_special_case(inputs: Inputs, file: Mapping[str, Any]) -> bool:
    """4.50 to 4.x look at the merged temperature before the keywords are applied."""
    if inputs.passed is None or not merge_active(inputs):
        return False
    merged = layered(_object_sources(inputs, file))
    return merged.number("temperature") == 0.0


def _serve(inputs: Inputs) -> Effective:
    request = {
        k: inputs.request[k] for k in ("temperature", "top_p", "seed") if k in inputs.request
    }
    nested = inputs.body.get("generation_config")
    sources: list[Source] = [
        ("request", request),
        ("request generation_config", nested if isinstance(nested, dict) else None),
        ("generation_config.json", _parameters(inputs.file)),
        ("library default", DEFAULTS),
    ]
    effective = layered(sources)
    if number(request.get("temperature")) == 0.0:
        effective.rewrite("do_sample", False, "the server turns temperature 0.0 into greedy")
    return judge(effective)


def judge(effective: Effective) -> Effective:
    """The mode that ``generate`` picks from the merged parameters."""
    beams = effective.number("num_beams") or 1
    temperature = effective.number("temperature")
    if effective.truth("do_sample"):
        if temperature is None or temperature <= 0:
            effective.error = "a temperature that is not above 0 is refused while do_sample is true"
            return effective.decide("unknown", effective.error, "do_sample")
        if effective.number("top_k") == 1:
            return effective.decide(
                "tie-sampling", "do_sample with top_k 1 still draws among exact ties", "do_sample"
            )
        return effective.decide("sampling", "do_sample is true", "do_sample")
    top_k, alpha = effective.number("top_k") or 0, effective.number("penalty_alpha") or 0
    if beams > 1:
        return effective.decide("greedy", "beam search without sampling draws nothing")
    if top_k > 1 and alpha > 0:
        return effective.decide("greedy", "contrastive search draws nothing, but is not argmax")
    return effective.decide("greedy", "do_sample is not true, so each step takes the argmax")
