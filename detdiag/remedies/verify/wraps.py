"""The context managers of ``detdiag.remedies`` by the name a trial gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from detdiag.remedies import (
    fp32_head,
    fp32_router,
    frozen_clock,
    no_dropout,
    no_jitter,
    pinned_routing,
    repeatable,
    row_invariant,
    stateless,
    uncapped_experts,
)
from detdiag.targets.local import LocalTarget
from detdiag.trace.toggles import thread_count


def _math(_model: Any, _job: Any) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.MATH)


WRAPS: Final[dict[str, Callable[[Any, Mapping[str, Any]], Any]]] = {
    "row_invariant": lambda model, _job: row_invariant(model),
    "row_invariant_modules": lambda model, job: row_invariant(model, modules=job["modules"]),
    "deterministic": lambda _m, _j: repeatable.deterministic_algorithms(),
    "cudnn": lambda _m, _j: repeatable.cudnn(),
    "precision": lambda _m, _j: repeatable.precision(),
    "math_attention": _math,
    "one_thread": lambda _m, _j: thread_count(1),
    "fp32_head": lambda model, _job: fp32_head(model),
    "fp32_router": lambda model, _job: fp32_router(model),
    "pinned_routing": lambda model, _job: pinned_routing(model),
    "uncapped_experts": lambda model, _job: uncapped_experts(model),
    "no_jitter": lambda model, _job: no_jitter(model),
    "no_dropout": lambda model, _job: no_dropout(model),
    "stateless": lambda model, _job: stateless(model),
    "frozen_clock": lambda _m, _j: frozen_clock("2026-01-01T12:00:00"),
}


def facts_of(target: LocalTarget) -> dict[str, Any]:
    """What decides which remedies apply."""
    from detdiag.moe.discover import may_have_experts

    with uncapped_experts(target.model) as capacity, no_jitter(target.model) as jitter:
        return {
            "device": target.device,
            "dtype": target.dtype,
            "attention": getattr(target.model.config, "_attn_implementation", None),
            "threads": torch.get_num_threads(),
            "experts": may_have_experts(target.model),
            "capacity": list(capacity),
            "jitter": list(jitter),
        }
