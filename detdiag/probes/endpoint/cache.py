"""Cold against warm prefix cache with the best lever that this server has."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final

from detdiag.probes.endpoint.context import EndpointContext, Query
from detdiag.probes.endpoint.fillers import WORD_COUNTS, filler
from detdiag.probes.endpoint.plan import SHORT_TOKENS, WARM
from detdiag.targets.endpoint import wire
from detdiag.targets.prompts import Prompt
from detdiag.verdict.endpoint.restless import SLOWER

ONE_SLOT: Final = ("ollama", "llama-cpp-python")
"""Servers that keep what one request computed, as they come (abetlen/llama-cpp-python
llama_cpp/llama.py: ``generate`` keeps the longest prefix; ollama/ollama: NUM_PARALLEL 1)."""
LONG: Final = len(WORD_COUNTS) - 2
"""A filler long enough to replace what a slot held, and short enough for a small context."""


@dataclass(frozen=True, slots=True)
class Lever:
    """How one cold start is made. ``known`` says that this server is known to honour it;
    ``salted`` fields go with the cold call and its repeats, ``cold`` ones with the first only;
    ``between``: another prompt is asked before."""

    name: str
    known: bool
    salted: str | None = None
    cold: Mapping[str, Any] = field(default_factory=dict)
    between: bool = False


def lever_for(family: str | None, slower: float | None = None) -> Lever:
    """vLLM ``cache_salt``, SGLang ``extra_key``, llama.cpp ``cache_prompt``. A server with one slot
    (Ollama, llama-cpp-python) drops what it has for another prompt, and is ``slower`` after one.
    Any other gets a leading line of its own, which leaves a shared template prefix warm."""
    if family == "vllm":
        return Lever("cache_salt", True, "cache_salt")
    if family == "sglang":
        return Lever("extra_key", True, "extra_key")
    if family == "llamacpp":
        return Lever("cache_prompt: false", True, None, {"cache_prompt": False})
    shows = slower is not None and slower >= SLOWER
    if family in ONE_SLOT or shows:
        # Ollama may have been given more slots; of any other server time alone proves no slot
        known = family == "llama-cpp-python" or (family == "ollama" and shows)
        return Lever("another prompt before", known, between=True)
    return Lever("a leading line of its own", False)


def slower_after_another(context: EndpointContext) -> float | None:
    """Median time of calls after another prompt, over that of calls after the same; None without
    both for one question."""
    ratios = []
    for query in context.short():
        walls: dict[str, list[float]] = {"same": [], "another": []}
        for one in context.observations:
            told = (one.response or {}).get("context", {})
            if one.query == query.id and told.get("arm") == "idle" and told.get("after") in walls:
                walls[told["after"]].append(told["end_s"] - told["sent_s"])
        if all(walls.values()):
            same, another = (median(walls[name]) for name in ("same", "another"))
            ratios.append(another / max(same, 1e-9))
    return max(ratios, default=None)


async def cold_and_warm(context: EndpointContext) -> str | None:
    """Per cold start one cold call and its warm repeats, one question in turn."""
    if not context.plan.salts:
        return "no time for three cold starts within the budget"
    lever = lever_for(context.target.capabilities.family, slower_after_another(context))
    queries = context.short()
    for number in range(context.plan.salts):
        salt = f"dd{secrets.token_hex(6)}"
        query = _salted(queries[number % len(queries)], salt, lever)
        fields = {lever.salted: salt} if lever.salted else {}
        if lever.between:
            other = Query(f"between-{number}", filler(context.rng, LONG), SHORT_TOKENS)
            context.check()
            await context.ask(other, phase="cache", arm="between", unit=salt, role="intervention")
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
    if lever.salted or lever.cold or lever.between:
        return query
    prompt = query.prompt
    if prompt.messages is None:
        changed = Prompt(prompt.id, f"[{salt}] {prompt.text}")
    else:
        first, *rest = wire.chat_messages(prompt)
        first = {**first, "content": f"[{salt}] {first.get('content')}"}
        changed = Prompt(prompt.id, None, (first, *rest))
    return replace(query, id=f"{query.id}+{salt}", prompt=changed)
