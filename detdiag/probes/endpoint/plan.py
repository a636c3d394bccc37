"""How many requests go to which phase. Sizes come from power, not from taste.

Two arms of 5 units are the fewest that a permutation of units can part at p < 0.01 (2 in
C(10, 5)); 16 idle replies tell a finite set of answers from always new ones; 4 cold starts with 4
warm repeats each give (1/5)^4; 12 more connections meet a second replica behind a balancer with
odds of 4095 in 4096.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from detdiag.targets.prompts import Prompt

DEFAULT_REQUESTS: Final = 600
EXPLORE_REQUESTS: Final = 20
FRESH: Final = 2
"""Calls with unseen prompts of full length."""
WEIGHED: Final = 4
"""Fillers asked alone, to weigh bursts by."""
CONNECTIONS: Final = 4
WARM: Final = 4
FIRST_LOOK: Final = (8, 8, 16, 8, 16, 32)
NEXT_LOOK: Final = (8, 16, 8, 16, 8, 16)
BLOCK: Final = 4
"""Idle calls between two bursts."""
CALM: Final = BLOCK + 1
"""The same with the discarded call before them."""
FILLER_TOKENS: Final = 16
SHORT_TOKENS: Final = 4
TOKENS_PER_WORD: Final = 1.3


@dataclass(frozen=True, slots=True)
class EndpointPlan:
    """Requests of each phase. ``idle`` short calls and ``long`` full ones a prompt and server;
    ``spread`` calls on connections of their own; ``salts`` cold starts; ``first_look`` and
    ``next_look`` burst sizes; ``looks`` how often the burst arm may grow;
    ``tails`` ends of answers asked in bursts (two calls each to warm them)."""

    max_requests: int
    budget_s: float
    max_new_tokens: int
    idle: int = 16
    long: int = 10
    spread: int = 12
    salts: int = 4
    first_look: tuple[int, ...] = FIRST_LOOK
    next_look: tuple[int, ...] = NEXT_LOOK
    looks: int = 4
    tails: int = 2
    knobs: int = 10
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the plan: ``requests`` and tokens at most."""

    phase: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    note: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "phase": self.phase,
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "note": self.note,
        }


def make_plan(
    *,
    prompts: int,
    servers: int,
    repeats: int,
    max_requests: int | None,
    budget_s: float,
    max_new_tokens: int,
    seed: int,
) -> EndpointPlan:
    """Sizes that fit ``max_requests``: idle and long calls first, bursts get what is left."""
    limit = DEFAULT_REQUESTS if max_requests is None else max_requests
    plan = EndpointPlan(limit, budget_s, max_new_tokens, idle=max(10, min(repeats, 60)), seed=seed)
    share = limit * 0.45
    while prompts * servers * (plan.idle + plan.long) + plan.spread > share:
        smaller = _smaller(plan)
        if smaller == plan:
            break
        plan = smaller
    return _with_load(plan, prompts, servers)


def _with_load(plan: EndpointPlan, prompts: int, servers: int) -> EndpointPlan:
    """Bursts for what the idle arm leaves: the full look if it fits, else bursts of 8; the cold
    cache only where five bursts are safe."""
    n = _usable(prompts, plan, servers) * servers
    ground = servers * EXPLORE_REQUESTS + n * (4 + plan.idle + plan.long) + FRESH + WEIGHED
    ground += 2 * plan.tails
    if plan.max_requests - ground - plan.spread < 5 * (8 + CALM):
        plan = replace(plan, spread=min(plan.spread, 8))
    left = plan.max_requests - ground - plan.spread
    cold = plan.salts * (2 + WARM)
    if left - cold < 5 * (8 + CALM):
        plan = replace(plan, salts=0)
        cold = 0
    if left - cold < sum(plan.first_look) + CALM * len(plan.first_look):
        fitting = max(0, min(6, (left - cold) // (8 + CALM)))
        plan = replace(plan, first_look=(8,) * fitting, next_look=(8,) * fitting, tails=0)
    return plan


def _smaller(plan: EndpointPlan) -> EndpointPlan:
    """The next cheaper plan; at least 10 short and 4 full calls a prompt stay."""
    if plan.idle > 12:
        return replace(plan, idle=max(12, plan.idle - 4))
    if plan.long > 4:
        return replace(plan, long=plan.long - 2)
    if plan.spread > 8:
        return replace(plan, spread=8)
    return replace(plan, idle=10)


IDLE_SHARE: Final = 0.3
LOAD_SHARE: Final = 0.5
TOGETHER: Final = 0.5
"""A guess of what a burst takes against its requests one after the other."""


def fit_to_time(
    plan: EndpointPlan, prompts: int, servers: int, *, short_s: float, long_s: float, left_s: float
) -> tuple[EndpointPlan, int]:
    """The plan and the number of prompts that fit ``left_s`` at the measured time of a short and
    a full-length call. Few prompts with enough repeats are worth more than many with few."""

    def idle_s() -> float:
        return prompts * servers * (plan.idle * short_s + plan.long * long_s)

    while idle_s() > IDLE_SHARE * left_s:
        if prompts > 1:
            prompts -= 1
            continue
        smaller = _smaller(replace(plan, spread=0))
        if replace(smaller, spread=plan.spread) == plan:
            break
        plan = replace(smaller, spread=plan.spread)
    spread = max(4, min(plan.spread, int(0.08 * left_s / max(short_s, 1e-6))))
    salts = min(plan.salts, int(0.12 * left_s / max((2 + WARM) * short_s, 1e-6)))
    plan = replace(plan, spread=spread, salts=salts if salts >= 3 else 0)
    if look_s(plan.first_look, short_s) > LOAD_SHARE * left_s:
        plan = replace(plan, first_look=(8,) * 6, next_look=(8,) * 6)
    return plan, prompts


def look_s(sizes: Sequence[int], short_s: float) -> float:
    """A guess of what one look takes."""
    return short_s * (CALM * len(sizes) + TOGETHER * sum(sizes))


def usable_prompts(prompts: Sequence[Prompt], plan: EndpointPlan, servers: int) -> int:
    """How many of the prompts the request limit allows; the first ones are kept."""
    return _usable(len(prompts), plan, servers)


def _usable(prompts: int, plan: EndpointPlan, servers: int) -> int:
    each = servers * (plan.idle + plan.long) + 2
    return max(1, min(prompts, int(plan.max_requests * 0.5 - plan.spread) // each))


def prompt_tokens(prompt: Prompt) -> int:
    """A guess before anything is sent: 1.3 tokens a word."""
    texts = [prompt.text or ""] + [str(m.get("content") or "") for m in prompt.messages or ()]
    return max(1, round(TOKENS_PER_WORD * sum(len(t.split()) for t in texts)) + 8)


def rows(plan: EndpointPlan, prompts: Sequence[Prompt], servers: int) -> list[Row]:
    """The plan as a table; numbers are upper bounds, and phases may end earlier."""
    used = prompts[: usable_prompts(prompts, plan, servers)]
    n, mean = len(used), sum(map(prompt_tokens, used)) / len(used)
    out = plan.max_new_tokens
    idle, long = servers * n * plan.idle, servers * n * plan.long
    cold = plan.salts * (2 + WARM)
    table = [
        _row("capabilities", servers * EXPLORE_REQUESTS, mean, 1, "what the server can do"),
        _row("prime", servers * n * 4, mean, out / 2, "discarded, so that caches are warm"),
        _row("idle, short", idle, mean, SHORT_TOKENS, f"{CONNECTIONS} connections in turn"),
        _row("idle, full length", long + FRESH, mean, out, "one at a time"),
        _row("connections", plan.spread, mean, SHORT_TOKENS, "one call each on new connections"),
        _row(
            "cold and warm cache",
            cold,
            mean,
            SHORT_TOKENS,
            f"{plan.salts} cold starts, {WARM} repeats",
        ),
    ]
    looks = len(plan.first_look)
    first = sum(plan.first_look) + CALM * looks + (WEIGHED + 2 * plan.tails if looks else 0)
    sizes = ", ".join(map(str, sorted(set(plan.first_look)))) or "none: too few requests are left"
    table.append(
        _row(
            "load, first look", first, 150, FILLER_TOKENS, f"bursts of {sizes}; idle blocks between"
        )
    )
    spent = sum(r.requests for r in table)
    more = (plan.looks - 1) * (sum(plan.next_look) + CALM * len(plan.next_look))
    table.append(
        _row("load, further looks", max(0, min(more, plan.max_requests - spent)), 150,
             FILLER_TOKENS, "only while undecided; fork replay included")
    )  # fmt: skip
    return _capped(table, plan.max_requests)


def _row(phase: str, requests: int, prompt: float, output: float, note: str) -> Row:
    return Row(phase, requests, round(requests * prompt), round(requests * output), note)


def _capped(table: list[Row], limit: int) -> list[Row]:
    """Cut the rows that no longer fit below ``limit``."""
    out, left = [], limit
    for row in table:
        kept = min(row.requests, left)
        share = kept / row.requests if row.requests else 0.0
        out.append(
            replace(
                row, requests=kept, prompt_tokens=round(row.prompt_tokens * share),
                output_tokens=round(row.output_tokens * share),
            )
        )  # fmt: skip
        left -= kept
    return out
