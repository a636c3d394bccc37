"""The fingerprint of a live server: what it reports, and what it does with fixed probes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.fingerprint.collect import SCHEMA
from detdiag.fingerprint.endpoint_facts import (
    INFO_ROUTES,
    engine_of,
    info_gauges,
    model_entry,
    model_names,
    stable_facts,
    telling_headers,
)
from detdiag.fingerprint.endpoint_probes import PROBES, probe
from detdiag.targets.endpoint import EndpointError, EndpointTarget, Reply, open_target

Readings = Sequence[Mapping[str, tuple[Reply, Any]]]

_READINGS: Final = 2
"""Each route is read twice: what changes between two readings is no fact about the deployment."""


def take(
    urls: Sequence[str],
    *,
    model: str | None = None,
    api_key_env: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> list[tuple[str, dict[str, Any]]]:
    """``(address, fingerprint)`` of each URL in order, one server after the other."""

    async def one(target: EndpointTarget) -> dict[str, Any]:
        try:
            return await endpoint_fingerprint(target)
        finally:
            await target.client.aclose()

    options: dict[str, Any] = {"headers": headers, "api_key_env": api_key_env}
    targets = [
        open_target(url, model or "", timeout_s=timeout_s, retries=2, **options) for url in urls
    ]
    return [(target.name, asyncio.run(one(target))) for target in targets]


async def endpoint_fingerprint(target: EndpointTarget) -> dict[str, Any]:
    """Facts at the top level under the names of the version factors, the rest in ``reported``.

    ``numerics`` holds digests of log-probabilities as sent, for the probes that repeated to the
    last digit. A target without a model name takes the only one that the server lists.
    Raises :class:`DetdiagError` when the server cannot be reached or answers no probe.
    """
    readings = [await _read_routes(target) for _ in range(_READINGS)]
    routes = {path: body for path, (_, body) in readings[0].items()}
    named = target.model or target.address.deployment
    target.model = named or _only_model(routes.get("v1:/models"), target.name)
    try:
        capabilities = await target.explore(PROBES[0])
        probing = await probe(target)
    except EndpointError as error:
        raise DetdiagError(f"{target.name}: {error.message}", tip=_tip(error)) from error
    fingerprint = _one(probing.seen("system_fingerprint"))
    engine, version = engine_of(routes, fingerprint)
    engine = engine or capabilities.family
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "endpoint": {
            "url": target.name,
            "model": target.model,
            "capabilities": capabilities.rows(),
            "probes": len(probing.observations),
            "probes_that_did_not_repeat": probing.unsteady(),
        },
        "engine": engine,
        "engine_version": version,
        "system_fingerprint": fingerprint,
        "model_reported": _one(probing.seen("model_reported")),
        "provider": _one(probing.seen("provider")),
        **probing.facts(),
        "reported": _reported(readings, target.model),
    }
    return {key: value for key, value in facts.items() if value not in (None, {}, [])}


async def _read_routes(target: EndpointTarget) -> dict[str, tuple[Reply, Any]]:
    """Routes that answered, by path. A server that cannot be reached at all is an error."""
    found: dict[str, tuple[Reply, Any]] = {}
    for path in INFO_ROUTES:
        try:
            reply = await target.client.call("GET", path, retry=False)
        except EndpointError as error:
            if error.kind == "unreachable" or (error.kind == "timeout" and not found):
                raise DetdiagError(error.message, tip=_tip(error)) from error
            continue
        body = _decoded(path, reply)
        if body:
            found[path] = (reply, body)
    return found


def _decoded(path: str, reply: Reply) -> Any:
    if reply.status != 200:
        return None
    if path == "/metrics":
        return info_gauges(reply.body.decode("utf-8", "replace"))
    try:
        return reply.json()
    except EndpointError:
        return None


def _tip(error: EndpointError) -> str | None:
    if error.status in (401, 403):
        return "name the variable that holds the key with --api-key-env"
    return "is the server running at this address?" if error.kind == "unreachable" else None


def _only_model(models: Any, where: str) -> str:
    names = model_names(models)
    if len(names) == 1:
        return names[0]
    if not names:
        raise DetdiagError(f"{where} lists no model", tip="name one with --model-name")
    raise DetdiagError(
        f"{where} serves {len(names)} models", tip=f"--model-name, one of {', '.join(names[:8])}"
    )


def _reported(readings: Readings, name: str) -> dict[str, Any]:
    """Everything else that a server says, flat, by route."""
    out: dict[str, Any] = {}
    for path, (_, first) in readings[0].items():
        second = readings[1].get(path, (None, None))[1]
        if path == "v1:/models":
            first, second = model_entry(first, name), model_entry(second, name)
        facts = stable_facts(first, second)
        if facts:
            out[path.removeprefix("v1:").strip("/")] = facts
    headers = [
        telling_headers(reply.headers) for reading in readings for reply, _ in reading.values()
    ]
    shared = {k: v for k, v in (headers or [{}])[0].items() if all(h.get(k) == v for h in headers)}
    return out | ({"headers": shared} if shared else {})


def _one(values: Sequence[str]) -> str | list[str] | None:
    """A single value, or the list where replies differ (several engines answer)."""
    return values[0] if len(values) == 1 else list(values) or None
