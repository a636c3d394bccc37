"""The switches of torch that stand between a run and its repeat, in one context."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Final, Literal

import torch

from detdiag.errors import DetdiagError
from detdiag.trace.toggles import attribute, thread_count

WORKSPACE: Final = "CUBLAS_WORKSPACE_CONFIG"
CHILD_ENVIRONMENT: Final = {WORKSPACE: ":4096:8", "PYTHONHASHSEED": "0"}
"""Variables that a process must find when it starts: cuBLAS reads its workspace at its first use
(NVIDIA cuBLAS documentation, "Results Reproducibility"), Python its hash seed at its own."""


@contextlib.contextmanager
def torch_repeatable(
    *,
    deterministic: bool = True,
    warn_only: bool = False,
    cudnn_benchmark: bool = False,
    tf32: bool = False,
    reduced_precision: bool = False,
    attention: Literal["math", "as-is"] = "math",
    threads: int | None = 1,
    seed: int | None = None,
) -> Iterator[None]:
    """Run torch in its most repeatable setting; everything is set back on exit.

    ``deterministic`` calls ``torch.use_deterministic_algorithms`` (an operator that has no such
    algorithm raises, or warns with ``warn_only``) and leaves uninitialised memory as it is.
    ``cudnn_benchmark``, ``tf32`` and ``reduced_precision`` (16-bit accumulation inside products)
    say what stays on. ``attention`` "math" asks SDPA for its plain implementation. ``threads``
    None leaves their number. ``seed`` seeds all generators on entry and gives their old state back
    on exit. Raises :class:`DetdiagError` where CUDA runs already and ``CUBLAS_WORKSPACE_CONFIG``
    is not set (see :data:`CHILD_ENVIRONMENT`).

    It makes runs at one shape repeat. It does not make a row independent of its batch: that is
    :func:`detdiag.remedies.row_invariant`.
    """
    with contextlib.ExitStack() as stack:
        if deterministic:
            stack.enter_context(deterministic_algorithms(warn_only))
        if attention == "math":
            from torch.nn.attention import SDPBackend, sdpa_kernel

            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(cudnn(cudnn_benchmark, deterministic))
        stack.enter_context(precision(tf32, reduced_precision))
        if threads is not None:
            stack.enter_context(thread_count(threads))
        if seed is not None:
            stack.enter_context(seeded(seed))
        yield


@contextlib.contextmanager
def deterministic_algorithms(warn_only: bool = False) -> Iterator[None]:
    """``torch.use_deterministic_algorithms`` and cuBLAS's workspace, without filled memory."""
    import torch.utils.deterministic as settings

    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        settings.fill_uninitialized_memory,
    )
    with _workspace():
        settings.fill_uninitialized_memory = False
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            settings.fill_uninitialized_memory = before[2]


@contextlib.contextmanager
def _workspace() -> Iterator[None]:
    if os.environ.get(WORKSPACE) in (":4096:8", ":16:8"):
        yield
        return
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        raise DetdiagError(
            f"{WORKSPACE} must be set before CUDA is first used",
            tip=f"{WORKSPACE}=:4096:8 python ...",
        )
    before = os.environ.get(WORKSPACE)
    os.environ[WORKSPACE] = CHILD_ENVIRONMENT[WORKSPACE]
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(WORKSPACE, None)
        else:
            os.environ[WORKSPACE] = before


@contextlib.contextmanager
def cudnn(benchmark: bool = False, deterministic: bool = True) -> Iterator[None]:
    """cuDNN's choice of algorithms: by timing or fixed, and only deterministic ones."""
    with (
        attribute(torch.backends.cudnn, "benchmark", benchmark),
        attribute(torch.backends.cudnn, "deterministic", deterministic),
    ):
        yield


@contextlib.contextmanager
def precision(tf32: bool = False, reduced: bool = False) -> Iterator[None]:
    """TensorFloat-32, and 16-bit accumulation inside 16-bit products."""
    matmul = torch.backends.cuda.matmul
    settings = [
        (matmul, "allow_tf32", tf32),
        (torch.backends.cudnn, "allow_tf32", tf32),
        (matmul, "allow_bf16_reduced_precision_reduction", reduced),
        (matmul, "allow_fp16_reduced_precision_reduction", reduced),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, value in settings:
            stack.enter_context(attribute(owner, name, value))
        yield


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """All generators (torch on every device, Python, NumPy) from ``seed``; old states on exit."""
    import random

    import numpy as np

    kept = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        seed_all(seed)
        try:
            yield
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])


def seed_all(seed: int) -> None:
    """Seed the generators that a model may draw from."""
    import random

    import numpy as np

    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
