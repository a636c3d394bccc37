"""What the record of an endpoint walk says about target and method, before any reply."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Final

from detdiag import __version__
from detdiag.targets.endpoint import Capabilities

if TYPE_CHECKING:
    from detdiag.engine.endpoint import EndpointRun

FACTOR_LAYERS: Final = {"connection": "version", "session": "version"}


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
