"""Numerical switches, one at a time, each restored on exit.

Sources: torch.use_deterministic_algorithms and torch.utils.deterministic, torch.nn.attention
(sdpa_kernel), torch.backends.{mkldnn,cudnn,cuda.matmul}, PreTrainedModel.set_attn_implementation.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from detdiag.targets.loading import quiet_transformers
from detdiag.targets.local import LocalTarget
from detdiag.trace.toggles import attribute, thread_count

Switch = Callable[[LocalTarget], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Toggle:
    """``factor`` is the observation factor that the switch stands for."""

    name: str
    value: str
    factor: str
    switch: Switch
    remedy: str


def toggles_for(target: LocalTarget) -> list[Toggle]:
    """The switches that can matter for this model, on its device, cheapest news first."""
    cuda = torch.device(target.device).type == "cuda"
    found = [
        Toggle(
            "deterministic_algorithms",
            "on",
            "deterministic_algorithms",
            _deterministic,
            "torch.use_deterministic_algorithms(True)",
        ),
        *_attention(target, cuda),
    ]
    if cuda:
        found += _cuda(target)
    else:
        found += _cpu()
    return found


def _attention(target: LocalTarget, cuda: bool) -> list[Toggle]:
    current = getattr(target.model.config, "_attn_implementation", None)
    found = []
    if current != "eager":
        found.append(
            Toggle(
                "attention",
                "eager",
                "attention_backend",
                lambda t: _attn_implementation(t, "eager"),
                "load with attn_implementation='eager'",
            )
        )
    if current == "sdpa":
        names = ["MATH", "FLASH_ATTENTION", *(["EFFICIENT_ATTENTION"] if cuda else [])]
        found += [
            Toggle(
                "sdpa_kernel",
                name.lower(),
                "attention_backend",
                _sdpa_switch(name),
                f"torch.nn.attention.sdpa_kernel(SDPBackend.{name})",
            )
            for name in names
        ]
    return found


def _sdpa_switch(name: str) -> Switch:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return lambda _target: sdpa_kernel(getattr(SDPBackend, name))


def _cpu() -> list[Toggle]:
    found = [
        Toggle(
            "onednn",
            "off",
            "onednn",
            _onednn_off,
            "torch.backends.mkldnn.enabled = False",
        )
    ]
    if torch.get_num_threads() > 1:
        found.append(
            Toggle(
                "threads", "1", "threads", lambda _t: thread_count(1), "torch.set_num_threads(1)"
            )
        )
    return found


def _cuda(target: LocalTarget) -> list[Toggle]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    found = [
        Toggle(
            "cudnn_benchmark",
            "off" if cudnn.benchmark else "on",
            "autotune",
            lambda _t: attribute(cudnn, "benchmark", not cudnn.benchmark),
            "torch.backends.cudnn.benchmark = False",
        )
    ]
    for kind in ("bf16", "fp16"):
        name = f"allow_{kind}_reduced_precision_reduction"
        if kind == {"bfloat16": "bf16", "float16": "fp16"}.get(target.dtype):
            found.append(
                Toggle(
                    "reduced_precision_reduction",
                    "off" if getattr(matmul, name) else "on",
                    "reduced_precision",
                    _flip(matmul, name),
                    f"torch.backends.cuda.matmul.{name} = False",
                )
            )
    if target.dtype == "float32":
        found.append(
            Toggle(
                "tf32",
                "off" if matmul.allow_tf32 else "on",
                "tf32",
                _flip(matmul, "allow_tf32"),
                "torch.backends.cuda.matmul.allow_tf32 = False",
            )
        )
    return found


def _flip(owner: Any, name: str) -> Switch:
    return lambda _target: attribute(owner, name, not getattr(owner, name))


@contextlib.contextmanager
def _onednn_off(_target: LocalTarget) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.backends.mkldnn.flags(enabled=False):
            yield


@contextlib.contextmanager
def _deterministic(_target: LocalTarget) -> Iterator[None]:
    """Deterministic algorithms, without filling fresh memory (that would change a second thing)."""
    import torch.utils.deterministic as settings

    before = torch.are_deterministic_algorithms_enabled()
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = settings.fill_uninitialized_memory
    settings.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn)
        settings.fill_uninitialized_memory = fill


@contextlib.contextmanager
def _attn_implementation(target: LocalTarget, name: str) -> Iterator[None]:
    before = target.model.config._attn_implementation
    with quiet_transformers():
        target.model.set_attn_implementation(name)
        try:
            yield
        finally:
            target.model.set_attn_implementation(before)
