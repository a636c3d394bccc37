"""What a server tells about itself without being asked to generate anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from detdiag.targets.endpoint.client import Client
from detdiag.targets.endpoint.exchange import EndpointError, Reply

State = Literal["yes", "refused", "absent", "error"]
INFO_PATHS: Final = (
    ("version", "/version"),
    ("props", "/props"),
    ("server_info", "/get_server_info"),
    ("server_info", "/server_info"),
    ("ollama_version", "/api/version"),
    ("tgi_info", "/info"),
    ("metrics", "/metrics"),
    ("models", "v1:/models"),
)
"""SGLang names its route without ``get_`` from 0.5.6 on; the second is asked where the first
tells nothing."""
_INFO_FIELDS: Final = (
    "version", "build_info", "total_slots", "model_path", "model_alias", "n_ctx", "model_id",
    "model_dtype", "docker_label", "router", "sha", "weight_version", "served_model_name",
    "disable_radix_cache",
    "max_running_requests", "enable_deterministic_inference", "attention_backend", "tp_size",
    "dp_size", "quantization", "kv_cache_dtype", "max_batch_total_tokens", "schedule_policy",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Capability:
    """``state`` of one thing asked for; ``note`` says what the server answered."""

    name: str
    state: State
    note: str = ""

    def to_dict(self) -> dict[str, str]:
        return {"name": self.name, "state": self.state, "note": self.note}


async def information(
    client: Client,
) -> tuple[list[Capability], dict[str, Any], Any]:
    """What the routes tell: capabilities, facts by name, and whose metrics these are."""
    found: list[Capability] = []
    info: dict[str, Any] = {}
    metrics = None
    for name, path in INFO_PATHS:
        shown = path.replace("v1:", "/v1")
        if name in info:
            continue
        try:
            reply = await client.call("GET", path, retry=False, timeout_s=10.0)
        except EndpointError as error:
            if error.kind in ("unreachable", "spent"):
                raise
            found.append(Capability(shown, "error", error.message))
            continue
        if name == "metrics":
            metrics = metrics_family(reply)
            found.append(metrics_capability(shown, reply, metrics))
            continue
        facts = _facts(reply)
        usable = reply.status == 200 and bool(facts)
        found.append(Capability(shown, "yes" if usable else "refused", _note(reply, usable)))
        if usable:
            info[name] = facts
    return found, info, metrics


def _note(reply: Reply, usable: bool) -> str:
    said = f"HTTP {reply.status}"
    return said if usable or reply.status != 200 else f"{said}, but no facts in it"


async def metrics_again(client: Client, told: list[Capability]) -> tuple[list[Capability], Any]:
    """TGI and SGLang register their gauges with the first request: an empty page is read once
    more after it."""
    at = next((i for i, c in enumerate(told) if c.name == "/metrics"), None)
    if at is None or told[at].state != "absent":
        return told, None
    try:
        reply = await client.call("GET", "/metrics", retry=False, timeout_s=10.0)
    except EndpointError:
        return told, None
    family = metrics_family(reply)
    return [*told[:at], metrics_capability("/metrics", reply, family), *told[at + 1 :]], family


def _facts(reply: Reply) -> dict[str, Any]:
    if reply.status != 200:
        return {}
    try:
        decoded = reply.json()
    except EndpointError:
        return {}
    if isinstance(decoded, Mapping) and isinstance(decoded.get("data"), list):
        entries = [e for e in decoded["data"] if isinstance(e, Mapping)]
        owners = sorted({str(e.get("owned_by"))[:80] for e in entries[:20]})
        return {"ids": [str(e.get("id"))[:200] for e in entries[:20]], "owned_by": owners}
    if not isinstance(decoded, Mapping):
        return {}
    plain = {k: decoded[k] for k in _INFO_FIELDS if isinstance(decoded.get(k), (str, int, float))}
    return {k: v[:200] if isinstance(v, str) else v for k, v in plain.items()}


def metrics_family(reply: Reply) -> Any:
    """Whose metrics these are, from the names of their series."""
    if reply.status != 200:
        return None
    text = reply.body.decode("utf-8", "replace")
    for needle, name in (
        ("vllm:num_requests_running", "vllm"),
        ("sglang:num_running_reqs", "sglang"),
        ("llamacpp:requests_processing", "llamacpp"),
        ("tgi_batch_current_size", "tgi"),
    ):
        if needle in text:
            return name
    return None


def metrics_capability(shown: str, reply: Reply, family: str | None) -> Capability:
    if reply.status != 200:
        return Capability(shown, "refused", f"HTTP {reply.status}")
    if family is None:
        return Capability(shown, "absent", "no gauge of running requests that is known")
    return Capability(shown, "yes", f"names of {family}")
