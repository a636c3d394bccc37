"""Cold against warm prefix cache with the best lever that this server has."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from detdiag.probes.endpoint.context import EndpointContext, Query
from detdiag.probes.endpoint.plan import WARM
from detdiag.targets.endpoint import wire
from detdiag.targets.prompts import Prompt


@dataclass(frozen=True, slots=True)
class Lever:
    """How one cold start is made. ``known`` says that this server is known to honour it;
    ``salted`` fields go with the cold call and its repeats, ``cold`` ones with the first only."""

    name: str
    known: bool
    salted: str | None = None
    cold: Mapping[str, Any] = field(default_factory=dict)


def lever_for(family: str | None) -> Lever:
    """vLLM ``cache_salt``, SGLang ``extra_key``, llama.cpp ``cache_prompt``; for any other server
    a leading line of its own, which leaves a shared template prefix warm."""
    if family == "vllm":
        return Lever("cache_salt", True, "cache_salt")
    if family == "sglang":
        return Lever("extra_key", True, "extra_key")
    if family == "llamacpp":
        return Lever("cache_prompt: false", True, None, {"cache_prompt": False})
    return Lever("a leading line of its own", False)


async def cold_and_warm(context: EndpointContext) -> str | None:
    """Per cold start one cold call and its warm repeats, one question in turn."""
    lever = lever_for(context.target.capabilities.family)
    if context.target.capabilities.family == "ollama":
        return "Ollama keeps its prefix cache and offers no lever to empty it"
    if not context.plan.salts:
        return "no time for three cold starts within the budget"
    queries = context.short()
    for number in range(context.plan.salts):
        salt = f"dd{secrets.token_hex(6)}"
        query = _salted(queries[number % len(queries)], salt, lever)
        fields = {lever.salted: salt} if lever.salted else {}
        for turn in range(1 + WARM):
            context.check()
            cold = turn == 0
            await context.ask(
                query, phase="cache", arm="cold" if cold else "warm", unit=salt, salt=salt,
                connection="c0", overrides={**fields, **(lever.cold if cold else {})},
                factors={"prefix_cache": "cold" if cold else "warm"},
                lever=lever.name, lever_known=lever.known,
            )  # fmt: skip
    return None


def _salted(query: Query, salt: str, lever: Lever) -> Query:
    if lever.salted or lever.cold:
        return query
    prompt = query.prompt
    if prompt.messages is None:
        changed = Prompt(prompt.id, f"[{salt}] {prompt.text}")
    else:
        first, *rest = wire.chat_messages(prompt)
        first = {**first, "content": f"[{salt}] {first.get('content')}"}
        changed = Prompt(prompt.id, None, (first, *rest))
    return replace(query, id=f"{query.id}+{salt}", prompt=changed)
