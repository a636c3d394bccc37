"""The remedies that a local model can try, what each sets, and where it applies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Facts = Mapping[str, Any]
"""What the first child says of the model: ``device``, ``dtype``, ``attention``, ``threads``,
``experts``, ``capacity``, ``jitter``, ``samples``, ``modules`` (from the operator proof)."""


@dataclass(frozen=True, slots=True)
class Trial:
    """``setting`` is what a user writes; ``why_not(facts)`` is None where it applies.

    ``env`` and ``load`` act before torch and the model start, ``wraps`` are contexts around all
    runs, ``policy`` changes how rows are served, ``call`` the arguments of ``generate``.
    """

    name: str
    title: str
    setting: str
    why_not: Callable[[Facts], str | None]
    env: Mapping[str, str] = field(default_factory=dict)
    load: Mapping[str, Any] = field(default_factory=dict)
    wraps: tuple[str, ...] = ()
    policy: str = ""
    call: Mapping[str, Any] = field(default_factory=dict)
    kinds: frozenset[str] | None = None
    """Kinds of contrast on which it can act (None: any)."""


def _always(_facts: Facts) -> str | None:
    return None


def _cuda(facts: Facts) -> str | None:
    return None if str(facts.get("device", "")).startswith("cuda") else "acts on CUDA only"


def _full_precision(facts: Facts) -> str | None:
    return _cuda(facts)


def _threads(facts: Facts) -> str | None:
    return "one thread is in use already" if facts.get("threads") == 1 else None


def _upcast(facts: Facts) -> str | None:
    return "the model runs in float32 already" if facts.get("dtype") == "float32" else None


def _upcast_head(facts: Facts) -> str | None:
    return "the head runs in float32 already" if facts.get("dtype") == "float32" else None


def _upcast_router(facts: Facts) -> str | None:
    return _experts(facts) or (
        "the router runs in float32 already" if facts.get("dtype") == "float32" else None
    )


def _eager(facts: Facts) -> str | None:
    return "eager attention is in use already" if facts.get("attention") == "eager" else None


def _sdpa(facts: Facts) -> str | None:
    return None if facts.get("attention") == "sdpa" else "the model does not use SDPA"


def _experts(facts: Facts) -> str | None:
    return None if facts.get("experts") else "the model has no experts"


def _capacity(facts: Facts) -> str | None:
    return _experts(facts) or (None if facts.get("capacity") else "no capacity setting was found")


def _jitter(facts: Facts) -> str | None:
    return None if facts.get("jitter") else "no jitter setting was found"


def _modules(facts: Facts) -> str | None:
    return None if facts.get("modules") else "no module was named by the operator proof"


BATCHED: Final = frozenset({"size", "padding", "neighbours", "company"})
DRAWN: Final = frozenset({"repeat", "generate", "history"})
RENDERED: Final = frozenset({"input"})
COMPUTED: Final = BATCHED | DRAWN

_ALL: Final = (
    Trial(
        "row_invariant", "operators row by row",
        "with detdiag.remedies.row_invariant(model): ...",
        _always, wraps=("row_invariant",), kinds=BATCHED,
    ),
    Trial(
        "row_invariant_modules", "operators and the proven module row by row",
        "with detdiag.remedies.row_invariant(model, modules=[...]): ...",
        _modules, wraps=("row_invariant_modules",), kinds=BATCHED,
    ),
    Trial(
        "constant_shape", "one constant padded shape",
        "pad every batch to one number of rows and one length",
        _always, policy="constant_shape", kinds=BATCHED,
    ),
    Trial("batch_1", "one row at a time", "batch size 1, no padding", _always,
          policy="batch_1", kinds=BATCHED),
    Trial(
        "deterministic", "deterministic algorithms",
        "CUBLAS_WORKSPACE_CONFIG=:4096:8; torch.use_deterministic_algorithms(True)",
        _always, env={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, wraps=("deterministic",),
        kinds=COMPUTED,
    ),
    Trial(
        "cudnn_benchmark_off", "cuDNN benchmark off",
        "torch.backends.cudnn.benchmark = False; torch.backends.cudnn.deterministic = True",
        _cuda, wraps=("cudnn",), kinds=COMPUTED,
    ),
    Trial(
        "full_precision", "TF32 and reduced precision off",
        "torch.backends.cuda.matmul.allow_tf32 = False; "
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False",
        _full_precision, wraps=("precision",), kinds=COMPUTED,
    ),
    Trial(
        "math_attention", "plain attention kernel",
        "with torch.nn.attention.sdpa_kernel(SDPBackend.MATH): ...",
        _sdpa, wraps=("math_attention",), kinds=COMPUTED,
    ),
    Trial(
        "eager_attention", "eager attention",
        "from_pretrained(..., attn_implementation='eager')",
        _eager, load={"attn": "eager"}, kinds=COMPUTED,
    ),
    Trial(
        "one_thread", "one thread", "OMP_NUM_THREADS=1; torch.set_num_threads(1)",
        _threads, env={"OMP_NUM_THREADS": "1"}, wraps=("one_thread",), kinds=COMPUTED,
    ),
    Trial(
        "fp32", "float32 throughout", "from_pretrained(..., dtype=torch.float32)",
        _upcast, load={"dtype": "float32"}, kinds=COMPUTED,
    ),
    Trial(
        "fp32_head", "float32 head", "with detdiag.remedies.fp32_head(model): ...",
        _upcast_head, wraps=("fp32_head",), kinds=COMPUTED,
    ),
    Trial(
        "fp32_router", "float32 router", "with detdiag.remedies.fp32_router(model): ...",
        _upcast_router, wraps=("fp32_router",), kinds=COMPUTED,
    ),
    Trial(
        "pinned_routing", "routing pinned",
        "with detdiag.remedies.pinned_routing(model): ...",
        _experts, wraps=("pinned_routing",), kinds=COMPUTED,
    ),
    Trial(
        "capacity_off", "no expert capacity",
        "with detdiag.remedies.uncapped_experts(model): ...",
        _capacity, wraps=("uncapped_experts",), kinds=COMPUTED,
    ),
    Trial(
        "jitter_off", "router noise off", "with detdiag.remedies.no_jitter(model): ...",
        _jitter, wraps=("no_jitter",), kinds=COMPUTED,
    ),
    Trial(
        "dropout_off", "evaluation mode, dropout off",
        "with detdiag.remedies.no_dropout(model): ...",
        _always, wraps=("no_dropout",), kinds=DRAWN,
    ),
    Trial(
        "seeds", "a seed before every call", "torch.manual_seed(0) before each call",
        _always, policy="seeds", kinds=DRAWN,
    ),
    Trial(
        "stateless", "module state put back before every call",
        "with detdiag.remedies.stateless(model): ...",
        _always, wraps=("stateless",), kinds=DRAWN,
    ),
    Trial(
        "greedy", "greedy request", "model.generate(..., do_sample=False, num_beams=1)",
        _always, call={"do_sample": False, "num_beams": 1}, kinds=frozenset({"generate"}),
    ),
    Trial(
        "frozen_clock", "the template's clock frozen",
        "with detdiag.remedies.frozen_clock('2026-01-01'): ...",
        _always, wraps=("frozen_clock",), kinds=RENDERED,
    ),
    Trial(
        "canonical_prompt", "one canonical form of the request",
        "detdiag.remedies.canonical_body(request)",
        _always, policy="canonical", kinds=RENDERED,
    ),
)  # fmt: skip
TRIALS: Final[dict[str, Trial]] = {trial.name: trial for trial in _ALL}

_FIRST: Final[tuple[tuple[str, str], ...]] = (
    ("batch.state-carried", "stateless seeds deterministic"),
    ("batch.padding", "row_invariant batch_1 constant_shape math_attention eager_attention fp32"),
    ("batch.neighbour", "row_invariant batch_1 row_invariant_modules fp32"),
    ("batch.shared-scale", "batch_1 row_invariant_modules row_invariant fp32"),
    (
        "batch.",
        "row_invariant row_invariant_modules batch_1 constant_shape fp32 deterministic "
        "math_attention eager_attention one_thread cudnn_benchmark_off full_precision",
    ),
    (
        "operator.stochastic",
        "dropout_off jitter_off seeds deterministic",
    ),
    (
        "operator.",
        "deterministic cudnn_benchmark_off one_thread math_attention eager_attention "
        "full_precision seeds dropout_off stateless fp32",
    ),
    (
        "moe.capacity",
        "capacity_off batch_1 pinned_routing row_invariant constant_shape fp32_router",
    ),
    ("moe.router-jitter", "jitter_off seeds dropout_off pinned_routing"),
    (
        "moe.",
        "pinned_routing fp32_router batch_1 row_invariant capacity_off deterministic seeds fp32",
    ),
    ("decode.", "fp32_head greedy fp32 seeds deterministic"),
    ("config.", "greedy seeds deterministic"),
    ("input.", "canonical_prompt frozen_clock"),
)
"""Effect over cost, best first; what cannot act on the kind of contrast is left out."""


def trials_for(rule: str, kind: str) -> list[Trial]:
    """The remedies to try for ``rule``, in the order of expected effect over cost."""
    names = next((names for start, names in _FIRST if rule.startswith(start)), "")
    found = [TRIALS[name] for name in names.split()]
    return [t for t in found if t.kinds is None or kind in t.kinds]
