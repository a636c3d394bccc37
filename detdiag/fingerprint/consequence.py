"""What a version fact can change, and through which layer. Consequence, not name, sets severity."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from detdiag.evidence.finding import Severity
from detdiag.layers import Layer

Effect = Literal["tokens", "text", "bits", "inert", "unknown"]
"""The strongest thing a difference can change: the model's input ids, the text by another
decoding rule, the bits of the logits, or nothing."""

EFFECT_ORDER: Final[tuple[Effect, ...]] = ("tokens", "text", "bits", "unknown", "inert")


@dataclass(frozen=True, slots=True)
class Consequence:
    effect: Effect
    severity: Severity
    acts_on: Layer
    rule: str
    explains: tuple[str, ...] = ()


_Row = tuple[str, Effect, Severity, Layer, str, tuple[str, ...]]


def _server_rows() -> list[_Row]:
    """Facts that only a live server tells (``reported.<route>.<path>``, probes)."""
    return [
        (
            r"^reported\..*(num_\w*blocks|memory\w*|root|parent|path|dir|\.id|object|owned_by)$",
            "inert", "info", "version", "noted", (),
        ),
        (r"^reported\..*(version|build_info)$", "inert", "info", "version", "noted", ()),
        (
            r"^reported\..*(prefix_cach|chunked_prefill|radix_cache|schedul|max_num_|max_running"
            r"|block_size|total_slots|cuda_graph|overlap)",
            "bits", "medium", "batch", "settings", ("prefix_cache", "chunked_prefill"),
        ),
        (r"^reported\..*(attention_backend|sampling_backend|deterministic|enforce_eager)",
         "bits", "medium", "operator", "settings", ("attention_backend",)),
        (r"^reported\..*(^|\.|_)(tp|dp|pp|ep)_size$", "bits", "medium", "operator", "parallelism",
         ("tp", "expert_parallel")),
        (r"^reported\.headers", "unknown", "low", "version", "reported", ("replica",)),
        (r"^prompt_tokens", "tokens", "high", "input", "prompt-length",
         ("prompt_digest", "template_digest")),
        (r"^probe_text", "text", "high", "version", "answers", ()),
    ]  # fmt: skip


def _rows() -> list[tuple[re.Pattern[str], Consequence]]:
    library = ("library_versions", "engine_version")
    table: list[_Row] = [
        (r"(created|schema|detdiag|hostname|note)$", "inert", "info", "version", "noted", ()),
        *_server_rows(),
        (r"weights?_?\w*(digest|hash|sha\d*|md5|checksum)$|checkpoint", "bits", "high", "version",
         "weights", ("weights_digest",)),
        (
            r"quantisation|quantization|config\.quantization_config",
            "bits", "high", "version", "quantisation", ("quantisation", "weights_digest"),
        ),
        (r"^library_versions\.(?=tokenizers)", "tokens", "medium", "input", "library", library),
        (r"tokenizer", "tokens", "high", "input", "tokenizer",
         ("tokenizer_digest",)),
        (r"template", "tokens", "high", "input", "template",
         ("template_digest",)),
        (r"special_tokens", "tokens", "high", "input", "tokenizer", ("tokenizer_digest",)),
        (r"prompt", "tokens", "high", "input", "system-prompt",
         ("prompt_digest", "template_digest")),
        (r"generation_config\.(transformers_version|_from_model_config)", "inert", "info",
         "config", "noted", ()),
        (
            r"(^|\.)(temperature|top_p|top_k|min_p|seed|do_sample|num_beams|max_tokens"
            r"|max_new_tokens|\w+_penalty|stop)$",
            "text", "high", "config", "generation-config", ("effective_params",),
        ),
        (r"generation_config", "text", "high", "config", "generation-config",
         ("effective_params",)),
        (r"model_code\.", "bits", "high", "operator", "model-code", ("weights_digest",)),
        (r"config\.(torch_)?dtype", "bits", "high", "operator", "dtype", ("dtype",)),
        (r"config\.(architectures|transformers_version|auto_map)", "unknown", "low", "version",
         "config", ()),
        (r"config\.(bos|eos|pad)_token_id", "text", "medium", "config", "config", ()),
        (r"config\.|gguf\.", "bits", "high", "version", "config", ("weights_digest",)),
        (
            r"library_versions\.(transformers|tokenizers|sentencepiece|tiktoken|jinja2|mistral)",
            "tokens", "medium", "input", "library", library,
        ),
        (r"library_versions\.(vllm|sglang|llama-cpp-python|ollama|tgi)", "tokens", "medium",
         "version", "library", library),
        (
            r"library_versions\.(torch|triton|flash|xformers|nvidia|cuda|bitsandbytes|auto|gptq"
            r"|compressed|optimum|peft|kernels|onnx|intel|mkl|numpy|accelerate)",
            "bits", "medium", "operator", "library", library,
        ),
        (r"library_versions\.(safetensors|httpx|requests)", "inert", "info", "version", "noted",
         ()),
        (r"library_versions", "unknown", "low", "version", "library", library),
        (r"torch_runtime\.\w*threads", "bits", "medium", "operator", "threads", ("threads",)),
        (r"torch_build|torch_runtime", "bits", "medium", "operator", "library", library),
        (r"(^|\.)engine(_version|_build)?$", "tokens", "medium", "version", "engine",
         ("engine", "engine_version")),
        (r"(^|\.)(gpu|gpu_name|accelerator)$", "bits", "medium", "operator", "hardware",
         ("gpu",)),
        (r"gpu_facts|gpu_count", "bits", "low", "operator", "hardware", ("gpu",)),
        (r"(^|\.)(driver|cuda|cudnn|nccl|cublas|rocm)(_version)?$", "bits", "medium", "operator",
         "driver", ("driver",)),
        (r"cpu\.isa|isa$", "bits", "medium", "operator", "hardware", ("gpu",)),
        (r"cpu\.", "bits", "low", "operator", "hardware", ("gpu",)),
        (r"(^|\.)(tp|tensor_parallel\w*|pp|ep|world_size|expert_parallel)$", "bits", "medium",
         "operator", "parallelism", ("tp", "expert_parallel")),
        (r"threads", "bits", "medium", "operator", "threads", ("threads",)),
        (r"environment\.(VLLM_BATCH_INVARIANT|\w*NUM_PARALLEL)", "bits", "medium", "batch",
         "environment", ()),
        (r"environment\.(TZ|LC_ALL)", "tokens", "low", "input", "environment", ()),
        (r"environment\.(HF_HUB_OFFLINE|TOKENIZERS_PARALLELISM|PYTHONHASHSEED|CUDA_LAUNCH)",
         "inert", "info", "version", "noted", ()),
        (r"environment\.", "bits", "medium", "operator", "environment", ("threads",)),
        (r"platform\.libc", "bits", "low", "operator", "platform", ()),
        (r"python$|platform\.|container", "inert", "info", "version", "noted", ()),
        (
            r"system_fingerprint|model_reported|(^|\.)model$|revision|commit|weight_version",
            "unknown", "medium", "version", "reported",
            ("system_fingerprint", "model_reported", "replica"),
        ),
        (r"provider|replica|region|endpoint", "unknown", "medium", "version", "reported",
         ("provider", "replica")),
        (r"dtype$|kv_cache", "bits", "high", "operator", "dtype", ("dtype",)),
        (r"numerics|logprob", "bits", "high", "operator", "numerics", ()),
    ]  # fmt: skip
    return [(re.compile(p), Consequence(e, s, on, f"version.{r}-changed", x))
            for p, e, s, on, r, x in table]  # fmt: skip


_TABLE: Final = _rows()
_UNKNOWN: Final = Consequence("unknown", "low", "version", "version.fact-changed")


def consequence(field: str) -> Consequence:
    """What a difference in ``field`` (a dotted path) can do; the first row that fits decides."""
    for pattern, found in _TABLE:
        if pattern.search(field):
            return found
    return _UNKNOWN
