"""Each cause of an unsteady endpoint, what a diagnosis may say about it, and how often it must."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.stub_server import Behaviour, StubServer

Run = Callable[..., dict[str, Any]]
"""``run(url, *options) -> report``: the whole command, ``detdiag run --endpoint url ...``."""


@dataclass(frozen=True)
class Scenario:
    """``layers`` (and ``rules``) are right answers; ``share`` of the seeds must give one, or for a
    healthy server must be found clean.

    ``latent`` says that the cause need not show in the runs made, so that "no difference seen"
    is true as well. An inconclusive verdict is never wrong, only counted.
    """

    make: Callable[[int], tuple[Behaviour, ...]]
    layers: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    share: float = 0.0
    latent: bool = False
    later: Callable[[int], Behaviour] | None = None
    """The behaviour after a baseline was recorded."""
    says: str = ""
    """Words that the report must hold whenever it abstains."""
    quick: bool = True
    """Part of the default run."""


def _one(**fields: Any) -> Callable[[int], tuple[Behaviour, ...]]:
    return lambda seed: (Behaviour(seed=seed, **fields),)


ONE_SLOT: dict[str, Any] = {
    "one_slot": True,
    "prompt_token_s": 0.002,
    "metrics": False,
    "version": None,
    "tokenizer": False,
    "owner": "me",
}
"""As llama-cpp-python shows itself."""
SCENARIOS: dict[str, Scenario] = {
    "healthy": Scenario(_one(), share=0.95),
    "healthy-rounded": Scenario(_one(logprobs="rounded"), share=0.95),
    "healthy-text-only": Scenario(_one(logprobs="rejected"), share=0.95),
    "healthy-logprobs-ignored": Scenario(_one(logprobs="ignored"), share=0.95, quick=False),
    "healthy-prefix-cache": Scenario(_one(prefix_cache=True), share=0.85, quick=False),
    "healthy-with-ties": Scenario(_one(tie_share=0.2), share=0.95),
    "sampling": Scenario(_one(temperature=1.0), ("config",), share=0.95),
    "sampling-cold": Scenario(
        _one(temperature=0.01, tie_share=0.1), ("config", "decode"), share=0.5, latent=True
    ),
    "sampling-text-only": Scenario(
        _one(temperature=1.0, logprobs="rejected"), ("config",), share=0.9
    ),
    "tie-break": Scenario(
        _one(ties="random", tie_share=0.1), ("decode",), ("decode.exact-tie",), 0.8, latent=True
    ),
    "load-half": Scenario(_one(load_share=0.5), ("batch",), share=0.9),
    "load-tenth": Scenario(_one(load_share=0.1), ("batch",), share=0.3, latent=True, quick=False),
    "load-long-context": Scenario(
        _one(load_share=0.5, load_from=48), ("batch",), share=0.8, latent=True
    ),
    "load-rounded": Scenario(
        _one(load_share=0.5, logprobs="rounded"), ("batch",), share=0.9, quick=False
    ),
    # bits that move show in a text at near ties alone: in 3 of 20 seeds
    "load-text-only": Scenario(
        _one(load_share=0.5, logprobs="rejected"), ("batch",), share=0.05, latent=True
    ),
    "load-no-metrics": Scenario(
        _one(load_share=0.5, metrics=False, base_s=0.05), ("batch",), share=0.8
    ),
    "prefix-cache": Scenario(_one(prefix_cache=True, warm_path=True), ("batch",), share=0.9),
    "one-slot": Scenario(
        _one(warm_path=True, **ONE_SLOT), ("batch",), ("batch.prefix-reuse",), share=0.8
    ),
    "one-slot-healthy": Scenario(_one(**ONE_SLOT), share=0.6, quick=False),
    "replica-by-connection": Scenario(_one(replicas=2), ("version",), share=0.8),
    "replica-labelled": Scenario(
        _one(replicas=2, replica_header=True, choose_replica="request"), ("version",), share=0.8
    ),
    "replica-hidden": Scenario(
        _one(replicas=3, choose_replica="request"), says="replica pool or other tenants"
    ),
    "response-cache": Scenario(_one(response_cache=True), says="cache"),
    "response-cache-over-sampling": Scenario(
        _one(response_cache=True, temperature=1.0), ("config",), says="cache"
    ),
    "two-weights": Scenario(
        lambda seed: (Behaviour(seed=seed), Behaviour(seed=seed + 1000)), ("version",), share=0.9
    ),
    "clock-in-template": Scenario(_one(clock_in_template=True), ("input",), share=0.9),
    "drift-weights": Scenario(
        _one(), ("version",), share=0.9, later=lambda seed: Behaviour(seed=seed + 1000)
    ),
    "drift-kernel": Scenario(
        _one(),
        ("version",),
        share=0.8,
        later=lambda seed: Behaviour(seed=seed, kernel="b"),
        quick=False,
    ),
    "drift-weights-jittery": Scenario(
        _one(replicas=3, choose_replica="request"),
        ("version",),
        ("version.drift",),
        share=0.8,
        later=lambda seed: Behaviour(seed=seed + 1000, replicas=3, choose_replica="request"),
    ),
    "drift-kernel-jittery": Scenario(
        _one(replicas=3, choose_replica="request"),
        says="replica pool or other tenants",
        later=lambda seed: Behaviour(seed=seed, kernel="b", replicas=3, choose_replica="request"),
        quick=False,
    ),
    "drift-none-jittery": Scenario(
        _one(replicas=3, choose_replica="request"),
        says="replica pool or other tenants",
        later=lambda seed: Behaviour(seed=seed, replicas=3, choose_replica="request"),
    ),
    "drift-none": Scenario(_one(), share=0.95, later=lambda seed: Behaviour(seed=seed)),
}


def diagnose(scenario: Scenario, seed: int, run: Run, folder: Path) -> dict[str, Any]:
    """Start the servers of a scenario, run the command on them and return its report."""
    with _started(scenario.make(seed)) as servers:
        urls = [server.url for server in servers]
        if scenario.later is None:
            return run(urls)
        record = folder / "baseline.ndjson"
        run(urls, "-o", str(record))
        servers[0].become(scenario.later(seed))
        return run(urls, "--baseline", str(record))


@contextlib.contextmanager
def _started(behaviours: tuple[Behaviour, ...]) -> Iterator[list[StubServer]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(StubServer(b)) for b in behaviours]


def judge(scenario: Scenario, report: dict[str, Any]) -> str:
    """``right``, ``unseen`` (nothing differed, and it need not), ``abstained`` or ``WRONG ...``."""
    verdict = report["verdict"]
    status, layer, rule = verdict["status"], verdict.get("layer"), verdict.get("rule")
    if status == "inconclusive":
        if scenario.says and scenario.says not in str(report):
            return f"WRONG: abstained without saying {scenario.says!r}"
        return "abstained"
    if status == "clean":
        if scenario.layers or scenario.says:
            return "unseen" if scenario.latent else "WRONG: clean"
        return "right"
    if layer not in scenario.layers or (scenario.rules and rule not in scenario.rules):
        return f"WRONG: {layer} {rule}"
    return "right"
