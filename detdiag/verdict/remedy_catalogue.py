"""Remedies as data: what to set where, what it costs by whose word, and which trial measures it.

``effect``: 3 stops the cause, 2 takes most of its effect away, 1 makes it visible or repeats an
answer. ``cost``: 0 nothing worth naming to 4 most of the throughput or a rewrite. Sources name a
repository and a file, or a paper; figures are theirs and hold for their hardware.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WHITE: Final = "white_box"
BLACK: Final = "black_box"


@dataclass(frozen=True, slots=True)
class Entry:
    """One remedy. ``rules`` are prefixes of rule names; ``trial`` names the measured trial."""

    rules: tuple[str, ...]
    box: str
    action: str
    effect: int
    cost_rank: int
    command: str | None = None
    cost: str | None = None
    source: str | None = None
    verify: str | None = None
    trial: str | None = None
    kind: str = "mitigate"


_BATCH: Final = (
    "batch.size-sensitive", "batch.token-count", "batch.row-position", "batch.load-sensitive",
    "batch.neighbour-content", "config.breaks-batch-invariance",
)  # fmt: skip
_RACE: Final = (
    "operator.not-repeatable",
    "operator.race",
    "operator.switch-cures",
    "moe.router-race",
)
_RUN: Final = "detdiag run --model MODEL"

WHITE_BOX: Final[tuple[Entry, ...]] = (
    Entry(
        _BATCH, WHITE, "serve with batch-invariant kernels (vLLM)", 3, 2,
        "VLLM_BATCH_INVARIANT=1 vllm serve MODEL",
        "vLLM gives no figure (\"may impact performance\"); needs compute capability 8.0",
        "vllm-project/vllm docs/features/batch_invariance.md, "
        "vllm/model_executor/layers/batch_invariant.py",
        "repeat the contrast against the restarted server: detdiag run --endpoint URL",
    ),
    Entry(
        _BATCH, WHITE, "serve with deterministic inference (SGLang, 0.5.3 or later)", 3, 2,
        "sglang serve --model-path MODEL --enable-deterministic-inference",
        "34.35 % slower on average with CUDA graphs",
        "sgl-project/sglang docs/advanced_features/deterministic_inference.md",
        "repeat the contrast against the restarted server: detdiag run --endpoint URL",
    ),
    Entry(
        _BATCH, WHITE, "one slot and no prompt cache (llama.cpp)", 3, 3,
        "llama-server -m MODEL.gguf -np 1 --no-cache-prompt",
        "one request at a time; shared prefixes are computed again",
        "ggml-org/llama.cpp tools/server/README.md (cache_prompt)",
    ),
    Entry(
        _BATCH, WHITE, "one request at a time (Ollama; the default since 0.10.0)", 3, 3,
        "OLLAMA_NUM_PARALLEL=1 ollama serve",
        "one request at a time",
        "ollama/ollama envconfig/config.go",
    ),
    Entry(
        _BATCH, WHITE, "deterministic kernels (TensorRT-LLM)", 2, 2,
        "FORCE_DETERMINISTIC=1 trtllm-serve MODEL",
        "not documented; all-reduce alone asks for a workspace of 1 GB",
        "NVIDIA/TensorRT-LLM (FORCE_DETERMINISTIC, FORCE_ALL_REDUCE_DETERMINISTIC)",
    ),
    Entry(
        (*_BATCH, "batch.padding"), WHITE,
        "run products, attention and reductions row by row (transformers, any device)", 3, 2,
        "from detdiag.remedies import row_invariant\n"
        "with row_invariant(model):\n    model.generate(...)",
        "about the time of the rows one after another (docs/remedies.md has measured figures)",
        "detdiag.remedies.row_invariant",
        f"{_RUN} --verify-remedies", "row_invariant",
    ),
    Entry(
        (*_BATCH, "batch.shared-scale"), WHITE,
        "run the module that looks at the batch row by row as well", 3, 2,
        "from detdiag.remedies import row_invariant\n"
        "with row_invariant(model, modules=MODULES):\n    model.generate(...)",
        "about the time of the rows one after another",
        "detdiag.remedies.row_invariant",
        f"{_RUN} --verify-remedies", "row_invariant_modules",
    ),
    Entry(
        _BATCH, WHITE, "pad every batch to one number of rows and one length", 3, 3,
        None, "every request pays for the largest batch; answers change once against today's",
        None, f"{_RUN} --verify-remedies", "constant_shape",
    ),
    Entry(
        ("batch.",), WHITE, "serve one row at a time, without padding", 3, 4,
        None, "throughput of one row", None, f"{_RUN} --verify-remedies", "batch_1",
    ),
    Entry(
        ("batch.state-carried",), WHITE, "put module state back before every call", 3, 1,
        "from detdiag.remedies import stateless\nwith stateless(model):\n    model.generate(...)",
        "a copy of buffers and plain attributes a call",
        "detdiag.remedies.stateless", f"{_RUN} --verify-remedies", "stateless",
    ),
    Entry(
        ("batch.prefix-reuse",), WHITE, "switch prefix caching off", 3, 2,
        "vllm serve MODEL --no-enable-prefix-caching\n"
        "sglang serve --model-path MODEL --disable-radix-cache\n"
        "llama-server -m MODEL.gguf --no-cache-prompt",
        "shared prefixes are computed again",
        "vllm-project/vllm, sgl-project/sglang and ggml-org/llama.cpp server options",
    ),
    Entry(
        _RACE, WHITE, "deterministic algorithms, with cuBLAS's workspace fixed", 3, 1,
        "export CUBLAS_WORKSPACE_CONFIG=:4096:8\n"
        "from detdiag.remedies import torch_repeatable\nwith torch_repeatable():\n    ...",
        "slower kernels for some operators; an operator without such an algorithm raises",
        "pytorch/pytorch torch.use_deterministic_algorithms; NVIDIA cuBLAS documentation, "
        "results reproducibility",
        f"{_RUN} --only operator", "deterministic",
    ),
    Entry(
        _BATCH, WHITE, "deterministic algorithms (runs at one shape repeat; shapes still differ)",
        1, 2, "torch.use_deterministic_algorithms(True)",
        "slower kernels for some operators; an operator without such an algorithm raises",
        "pytorch/pytorch torch.use_deterministic_algorithms", None, "deterministic",
    ),
    Entry(
        _RACE, WHITE, "one thread inside operators", 2, 3,
        "OMP_NUM_THREADS=1", "the other cores idle", "pytorch/pytorch torch.set_num_threads",
        f"{_RUN} --only operator", "one_thread",
    ),
    Entry(
        (*_RACE, "operator.per-process"), WHITE, "no choice of kernels by timing", 3, 1,
        "torch.backends.cudnn.benchmark = False\n"
        "VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE=0 vllm serve MODEL",
        "kernels as untuned", "pytorch/pytorch torch.backends.cudnn; vllm-project/vllm envs.py",
        f"{_RUN} --only operator", "cudnn_benchmark_off",
    ),
    Entry(
        (*_RACE, *_BATCH), WHITE, "TF32 and 16-bit accumulation inside products off", 1, 2,
        "torch.backends.cuda.matmul.allow_tf32 = False\n"
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False",
        "float32 products lose the tensor cores' speed; makes changes smaller, not equal",
        "pytorch/pytorch docs/source/notes/cuda.rst", None, "full_precision",
    ),
    Entry(
        (*_RACE, "batch.padding", *_BATCH), WHITE, "the plain attention kernel", 1, 2,
        "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
        "with sdpa_kernel(SDPBackend.MATH):\n    ...",
        "memory grows with the square of the length",
        "pytorch/pytorch torch.nn.attention.sdpa_kernel", None, "math_attention",
    ),
    Entry(
        (*_RACE, "batch.padding", *_BATCH), WHITE, "eager attention", 1, 2,
        "AutoModelForCausalLM.from_pretrained(MODEL, attn_implementation=\"eager\")",
        "memory grows with the square of the length",
        "huggingface/transformers attention interface", None, "eager_attention",
    ),
    Entry(
        _RACE, WHITE, "ordered sums in place of atomics (kernel flags)", 3, 2,
        "VLLM_MARLIN_USE_ATOMIC_ADD=0 vllm serve MODEL\n"
        "SGLANG_FLASHINFER_MOE_FUSED_FINALIZE=0 sglang serve --model-path MODEL",
        "not documented", "vllm-project/vllm envs.py; sgl-project/sglang environment variables",
    ),
    Entry(
        ("batch.", "operator.race", "operator.not-repeatable", "decode.exact-tie", "moe."), WHITE,
        "compute in float32", 2, 4,
        "AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)",
        "twice the memory of 16 bit and a fraction of its speed; flips become rare, not impossible",
        "IEEE 754: logits of 16 to 32 lie 2^-3 apart in bfloat16, 2^-19 in float32",
        None, "fp32",
    ),
    Entry(
        ("operator.stochastic", "moe.router-jitter"), WHITE,
        "evaluation mode, and no dropout call with training=True", 3, 0,
        "from detdiag.remedies import no_dropout\nwith no_dropout(model):\n    model.generate(...)",
        "none at inference", "pytorch/pytorch torch.nn.Module.eval",
        f"{_RUN} --only operator", "dropout_off",
    ),
    Entry(
        ("operator.stochastic", "config.sampling", "decode."), WHITE,
        "a seed before every call (transformers has no seed argument)", 2, 0,
        "from transformers import set_seed\nset_seed(0)",
        "one stream of draws for the process: it holds for one request at a time",
        "huggingface/transformers transformers.set_seed", None, "seeds",
    ),
    Entry(
        ("moe.router-jitter",), WHITE, "router noise off", 3, 0,
        "from detdiag.remedies import no_jitter\nwith no_jitter(model):\n    model.generate(...)",
        "none at inference", "detdiag.remedies.no_jitter", f"{_RUN} --only moe", "jitter_off",
    ),
    Entry(
        ("moe.capacity",), WHITE, "no expert capacity", 3, 1,
        "from detdiag.remedies import uncapped_experts\n"
        "with uncapped_experts(model):\n    model.generate(...)",
        "memory up to experts / top_k times the balanced load", "detdiag.remedies.uncapped_experts",
        f"{_RUN} --only moe", "capacity_off",
    ),
    Entry(
        ("moe.",), WHITE, "replay the experts of the reference run", 3, 1,
        "from detdiag.remedies import pinned_routing\n"
        "with pinned_routing(model) as routes:\n    model.generate(...)",
        "2k small numbers a token and router, and a table of what was asked before",
        "detdiag.remedies.pinned_routing", f"{_RUN} --only moe", "pinned_routing",
    ),
    Entry(
        ("moe.",), WHITE, "router scores in float32", 2, 0,
        "from detdiag.remedies import fp32_router\n"
        "with fp32_router(model):\n    model.generate(...)",
        "one small float32 product a block", "detdiag.remedies.fp32_router",
        f"{_RUN} --only moe", "fp32_router",
    ),
    Entry(
        ("moe.capacity", "moe.expert"), WHITE, "serve one row at a time", 3, 4,
        None, "throughput of one row", None, f"{_RUN} --verify-remedies", "batch_1",
    ),
    Entry(
        ("decode.", "moe.router-tie"), WHITE, "the language head in float32", 2, 1,
        "sglang serve --model-path MODEL --enable-fp32-lm-head\n"
        "from detdiag.remedies import fp32_head\nwith fp32_head(model):\n    model.generate(...)",
        "vocabulary x width x 4 bytes",
        "sgl-project/sglang server_args.py; detdiag.remedies.fp32_head",
        f"{_RUN} --only decode", "fp32_head",
    ),
    Entry(
        ("config.sampling", "config.greedy", "decode."), WHITE,
        "a greedy request, spelled out", 3, 0,
        "model.generate(**inputs, do_sample=False, num_beams=1)",
        "less varied text", "huggingface/transformers GenerationConfig",
        f"{_RUN} --only config,decode", "greedy",
    ),
    Entry(
        ("input.template",), WHITE, "render chat templates at a fixed time", 3, 0,
        "from detdiag.remedies import frozen_clock\n"
        "with frozen_clock(\"2026-01-01\"):\n    tokenizer.apply_chat_template(...)",
        "the model is told a date that is not today's", "detdiag.remedies.frozen_clock",
        f"{_RUN} --only input", "frozen_clock",
    ),
    Entry(
        ("version.",), WHITE,
        "pin weights, tokenizer, template, libraries and image by digest", 3, 1,
        "detdiag fingerprint --model MODEL -o baseline.json\n"
        "detdiag run --model MODEL --baseline baseline.json",
        "upgrades become decisions", None, "detdiag fingerprint baseline.json now.json",
        None, "prevent",
    ),
)  # fmt: skip

_DIVERGES: Final = ("batch.", "operator.", "decode.", "moe.", "version.", "config.best-effort",
                    "config.sampling")  # fmt: skip

_SETTINGS: Final = (
    "config.sampling", "config.effective-parameters", "config.requests-differ",
    "config.ignored-parameter", "config.lost-on-the-wire", "config.changed-on-the-wire",
    "config.unspecified-default", "config.breaks-batch-invariance", "config.unsupported-error",
)  # fmt: skip
"""Rules of settings that a request can change (what is best effort only it cannot)."""

BLACK_BOX: Final[tuple[Entry, ...]] = (
    Entry(
        _SETTINGS, BLACK, "send every parameter explicitly, greedy in the provider's own words",
        3, 0, "detdiag audit REQUEST --fix FIXED", "less varied text", "docs/rules.md",
        "detdiag audit FIXED",
    ),
    Entry(
        ("input.", *_SETTINGS), BLACK, "build every request in one canonical form", 3, 0,
        "from detdiag.remedies import canonical_bytes\nbody = canonical_bytes(request)",
        "none", "detdiag.remedies.canonical_bytes", "detdiag diff REQUEST_A REQUEST_B",
        "canonical_prompt",
    ),
    Entry(
        ("batch.", "operator.", "version.", "moe.", "decode."), BLACK,
        "ask one dated model at one provider, without fallbacks", 2, 1,
        '{"model": "MODEL-DATE", "provider": {"order": ["PROVIDER"], "allow_fallbacks": false, '
        '"require_parameters": true}}',
        "requests fail where they fell back before",
        "OpenRouter documentation, provider routing (the provider object is OpenRouter's)",
        "detdiag run --endpoint URL",
    ),
    Entry(
        _DIVERGES, BLACK, "answer a question that was asked before from a cache", 1, 1,
        "from detdiag.remedies import ResponseCache\n"
        'answers = ResponseCache("answers.db")\n'
        "answers.answer(request, lambda: send(request), model_version=VERSION)",
        "storage; an answer that was wrong once is wrong for good, and the model stays as it was",
        "detdiag.remedies.ResponseCache (key: model and version, parameters, system prompt, "
        "messages, tools, seed)",
        "detdiag incidents LOGS",
    ),
    Entry(
        _DIVERGES, BLACK, "take the majority of several answers", 2, 3,
        "from detdiag.remedies import majority_vote\nmajority_vote(ask, VOTES, key=parse).answer",
        "VOTES calls a question, sent apart and not in one burst",
        "detdiag.remedies.votes_needed (exact binomial)", "detdiag score --endpoint URL",
    ),
    Entry(
        _DIVERGES, BLACK, "ask again until the answer fits a schema", 1, 1,
        "from detdiag.remedies import validated\nvalidated(ask, SCHEMA, retries=2).value",
        "retries where the shape is wrong; the content may still differ",
        "detdiag.remedies.validated",
    ),
    Entry(
        (*_DIVERGES, "config.best-effort"), BLACK,
        "compare only answers with equal system_fingerprint, model and provider", 1, 0,
        None, "none", "OpenAI API reference, system_fingerprint", "detdiag incidents LOGS",
        None, "detect",
    ),
    Entry(
        _DIVERGES, BLACK,
        "keep off the model what must come out the same every time: sums, counts, dates and units, "
        "sorting and matching of ids, prices and limits, access decisions, doses, anything that is "
        "audited by running it again. Let it fill in a form; let code decide",
        0, 4, None, "code has to be written", None, None, None, "prevent",
    ),
)  # fmt: skip
