"""One resolver per engine: the order in which it takes its parameters, and its greedy test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from detdiag.audit.engines import hosted, llamacpp, local, sglang, transformers, vllm
from detdiag.audit.engines.base import Effective, Inputs

_RESOLVERS: Final[dict[str, Callable[[Inputs], Effective]]] = {
    "hf": transformers.resolve,
    "vllm": vllm.resolve,
    "sglang": sglang.resolve,
    "llamacpp": llamacpp.resolve,
    "llamacpp_python": llamacpp.resolve_python,
    "ollama": local.ollama,
    "tgi": local.tgi,
    "tensorrtllm": local.tensorrt,
    "lmdeploy": local.lmdeploy,
    "mlc": local.mlc,
    "exllamav2": local.exllama,
}
BOUNDARIES: Final[dict[str, tuple[str, ...]]] = {
    "hf": transformers.BOUNDARIES,
    "vllm": vllm.BOUNDARIES,
    "sglang": sglang.BOUNDARIES,
    "llamacpp": llamacpp.BOUNDARIES,
    "ollama": local.OLLAMA_BOUNDARIES,
    "lmdeploy": local.LMDEPLOY_BOUNDARIES,
}
"""Versions at which a resolver answers differently."""


def resolve(engine: str, inputs: Inputs) -> Effective:
    """Effective parameters of one deployment at one version."""
    resolver = _RESOLVERS.get(engine)
    return hosted.resolve(inputs, engine) if resolver is None else resolver(inputs)
