"""One endpoint run as it was asked for, and what its record says before any reply."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from detdiag import __version__
from detdiag.layers import LAYERS
from detdiag.probes.endpoint.baseline import Baseline
from detdiag.probes.endpoint.plan import EndpointPlan
from detdiag.targets.endpoint import Capabilities, EndpointTarget
from detdiag.targets.prompts import Prompt

FACTOR_LAYERS: Final = {"connection": "version", "session": "version"}


@dataclass(frozen=True, slots=True)
class EndpointRun:
    """Everything one run needs. ``targets`` share one set of limits; the first one is probed in
    full, the others as replicas of it."""

    targets: tuple[EndpointTarget, ...]
    prompts: tuple[Prompt, ...]
    plan: EndpointPlan
    record_path: Path
    command: str
    only: Collection[str] = LAYERS
    skip: Collection[str] = ()
    resume: bool = False
    quiet: bool = False
    baseline: Baseline | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    prompts_given: int = 0


def header(run: EndpointRun) -> dict[str, Any]:
    plan, main = run.plan, run.targets[0]
    temperature = main.template.get("temperature", "the server's default")
    return {
        "tool": {"name": "detdiag", "version": __version__},
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "target": {
            "kind": "endpoint",
            "name": ", ".join(t.name for t in run.targets),
            "model": main.model,
            "engine": main.capabilities.family,
            "prompts": len(run.prompts),
        },
        "fingerprint": facts_of(main.capabilities),
        "factor_layers": dict(FACTOR_LAYERS),
        "method": {
            "conditions": (
                f"requests with temperature {temperature}: idle on several connections, bursts "
                f"of {', '.join(map(str, sorted(set(plan.first_look))))} among idle blocks, cold "
                "and warm prefix cache"
            ),
            "replicas": len(run.targets),
            "max_requests": plan.max_requests,
            "max_new_tokens": plan.max_new_tokens,
            "budget_s": plan.budget_s,
            "seed": plan.seed,
            "command": run.command,
            "limits": _limits(run),
        },
    }


def _limits(run: EndpointRun) -> list[str]:
    out = [
        "seen from outside: a pool of replicas behind one address and the load of other tenants "
        "look alike unless labels, connections or the server's own counters part them"
    ]
    if len(run.targets) > 1:
        out.append("bursts, cold cache and connections were tried on the first URL only")
    if run.prompts_given > len(run.prompts):
        out.append(
            f"{len(run.prompts)} of {run.prompts_given} prompts were used, so that each gets "
            "enough repeats within --max-requests"
        )
    return out


def facts_of(capabilities: Capabilities) -> dict[str, Any]:
    """What the server says about itself, as flat facts."""
    out: dict[str, Any] = {}
    for source, facts in capabilities.info.items():
        for name, value in facts.items():
            out[f"{source}.{name}"] = value
    return out


def capability_rows(run: EndpointRun) -> list[dict[str, Any]]:
    several = len(run.targets) > 1
    return [
        {**({"server": target.name} if several else {}), **row}
        for target in run.targets
        for row in target.capabilities.rows()
    ]
