"""An OpenAI-compatible server as a target: HTTP client, capabilities, questions.

Usage (every function is a coroutine of one event loop)::

    from detdiag.targets.endpoint import Limits, open_target

    target = open_target("http://host:8000", "model", limits=Limits(max_requests=500, rps=5),
                         api_key_env="MY_KEY", headers={"X-Tenant": "t"})
    capabilities = await target.explore(prompt)        # about a dozen requests
    observation = await target.ask(prompt, max_tokens=64, connection="c1")
    await target.client.aclose()

``ask`` raises :class:`EndpointError` (``kind``: unreachable, timeout, http, truncated,
invalid-json, no-answer, spent). Retries are in ``observation.response["context"]["retries"]``.
No torch here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from detdiag.errors import DetdiagError
from detdiag.targets.endpoint import wire
from detdiag.targets.endpoint.address import Address, parse_address
from detdiag.targets.endpoint.capabilities import Capabilities
from detdiag.targets.endpoint.client import Client
from detdiag.targets.endpoint.exchange import EndpointError, Limits, Reply, Retry
from detdiag.targets.endpoint.information import Capability
from detdiag.targets.endpoint.target import EndpointTarget, with_context, with_factors

__all__ = [
    "Address",
    "Capabilities",
    "Capability",
    "Client",
    "EndpointError",
    "EndpointTarget",
    "Limits",
    "Reply",
    "Retry",
    "open_target",
    "parse_address",
    "with_context",
    "with_factors",
]


def open_target(
    url: str,
    model: str,
    *,
    template: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    api_key_env: str | None = None,
    limits: Limits | None = None,
    timeout_s: float = 60.0,
    retries: int = 3,
    replica: str | None = None,
) -> EndpointTarget:
    """A target that has not been asked anything yet.

    ``template`` is a request body without its prompt (default: temperature 0). The key is read
    from the environment variable ``api_key_env``; raises :class:`DetdiagError` if it is not set.
    """
    client = Client(
        parse_address(url),
        headers=headers,
        api_key=_key(api_key_env),
        timeout_s=timeout_s,
        retries=retries,
        limits=limits,
    )
    return EndpointTarget(
        client, model, wire.DEFAULT_TEMPLATE if template is None else template, replica=replica
    )


def _key(name: str | None) -> str | None:
    if name is None:
        return None
    value = os.environ.get(name)
    if not value:
        raise DetdiagError(f"--api-key-env {name}: this environment variable is not set")
    return value.strip()
