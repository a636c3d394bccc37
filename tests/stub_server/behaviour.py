"""What a stub server does to its replies: one field for each cause of nondeterminism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Fault = Literal[
    "500",
    "hang",
    "truncate",
    "bad-json",
    "not-json",
    "content-type",
    "huge",
    "other-model",
    "429",
    "redirect",
    "reset",
    "no-choices",
    "null",
    "401",
    "html",
    "half",
    "abort",
    "bomb",
    "wait",
]


@dataclass(frozen=True)
class Behaviour:
    """A healthy greedy server unless a field says otherwise. ``seed`` makes weights and draws.

    ``temperature`` is used whatever the request says. ``load_share`` is the share of requests
    that run on another kernel while others run, from ``load_from`` tokens on. ``warm_path``:
    tokens found in the prefix cache give other bits than tokens computed anew. ``replicas``
    engines with other kernels answer, chosen for each ``connection`` or ``request``.
    """

    seed: int = 0
    weights: str = "w"
    temperature: float | None = None
    default_temperature: float = 1.0
    ties: Literal["lowest", "random"] = "lowest"
    tie_share: float = 0.0
    load_share: float = 0.0
    load_from: int = 0
    """Context tokens from which load changes the kernel."""
    cache_block: int = 4
    prefix_cache: bool = False
    one_slot: bool = False
    """What the last request computed is all that can be reused, and it takes the time of each
    prompt token again where it cannot."""
    warm_path: bool = False
    replicas: int = 1
    choose_replica: Literal["connection", "request"] = "connection"
    replica_header: bool = False
    replica_fingerprints: bool = False
    kernel: str = ""
    """Name of the rounding that this build has; another name is another build."""
    response_cache: bool = False
    clock_in_template: bool = False
    system: str = "be brief"
    """System prompt of the template."""
    logprobs: Literal["full", "rounded", "rejected", "ignored"] = "full"
    max_logprobs: int = 20
    metrics: bool = True
    tokenizer: bool = True
    version: str | None = "0.11.0"
    owner: str = "vllm"
    fingerprint: str | None = None
    report_cached: bool = True
    step_s: float = 0.00005
    base_s: float = 0.002
    prompt_token_s: float = 0.0
    fault: Callable[[int, str], Fault | None] | None = None
    """Called with the request's number and path; names what goes wrong with this one."""
