"""Switches of this process that can change which kernel runs; each is set back on exit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

import torch


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def math_attention() -> Iterator[None]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        yield


@contextlib.contextmanager
def without_mkldnn() -> Iterator[None]:
    with torch.backends.mkldnn.flags(enabled=False):
        yield


@contextlib.contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """``warn_only``, and uninitialised memory is left as it is."""
    before = torch.are_deterministic_algorithms_enabled()
    warn = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn)
        torch.utils.deterministic.fill_uninitialized_memory = fill


TOGGLES: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "math attention": math_attention,
    "oneDNN off": without_mkldnn,
    "one thread": one_thread,
    "deterministic algorithms": deterministic_algorithms,
}
