"""The seven diagnostic layers, in the order of the walk, and the factor that belongs to each."""

from __future__ import annotations

from typing import Final, Literal, get_args

Layer = Literal["config", "input", "batch", "operator", "decode", "moe", "version"]
LAYERS: Final[tuple[Layer, ...]] = get_args(Layer)

LAYER_QUESTIONS: Final[dict[Layer, str]] = {
    "config": "is anything still sampling, or a parameter ignored, defaulted or unsupported?",
    "input": "are the bytes and the token ids the same?",
    "batch": "does it depend on who shares the batch, on padding, caches or order?",
    "operator": "do identical conditions repeat to the bit, and which operator does not?",
    "decode": "equal logits, another token?",
    "moe": "did a token go to another expert, or get dropped?",
    "version": "is it the same model and stack everywhere and every day?",
}

_FACTORS: Final[dict[Layer, str]] = {
    "config": "temperature top_p top_k min_p seed n repetition_penalty presence_penalty "
    "frequency_penalty do_sample num_beams max_tokens stop effective_params",
    "input": "prompt_digest template_digest add_bos padding_text client",
    "batch": "batch_size row concurrency in_flight_tokens neighbours padding_side "
    "padded_length cached_tokens prefix_cache chunked_prefill order",
    "operator": "deterministic_algorithms attention_backend dtype activation_quantisation "
    "tf32 threads autotune compile cuda_graphs process stream_overlap",
    "decode": "sampler tie_break spec_decode rng_scope neighbour_params",
    "moe": "routing_pinned expert_capacity router_dtype expert_parallel",
    "version": "engine engine_version library_versions weights_digest tokenizer_digest "
    "quantisation gpu driver tp replica provider system_fingerprint model_reported time",
}
FACTOR_LAYERS: Final[dict[str, Layer]] = {
    factor: layer for layer, factors in _FACTORS.items() for factor in factors.split()
}
"""The layer of every known factor name."""

CONTROL_FACTOR: Final = "repeat"
"""Identical conditions, run again."""

ORDER_FACTORS: Final = frozenset({"time"})
"""Factors that order observations but are never a condition to match on."""


def layer_rank(layer: str) -> int:
    """Place of ``layer`` in the walk (0-based); an unknown layer sorts last."""
    return LAYERS.index(layer) if layer in LAYERS else len(LAYERS)
