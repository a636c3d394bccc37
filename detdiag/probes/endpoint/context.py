"""What the phases of one endpoint walk share: targets, plan, limits, and asking with an arm."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from detdiag.evidence.observation import Observation
from detdiag.evidence.record import Event
from detdiag.probes.endpoint.plan import SHORT_TOKENS, EndpointPlan
from detdiag.targets.endpoint import EndpointError, EndpointTarget, with_context
from detdiag.targets.endpoint.target import Api
from detdiag.targets.prompts import Prompt

GIVE_UP_AFTER: Final = 3
"""Calls in a row that fail (each after its retries) before the server counts as gone."""


@dataclass(frozen=True, slots=True)
class Query:
    """One question with its length. ``prompt_ids`` goes to ``/v1/completions`` as it is;
    ``overrides`` are part of the question (a prefix to continue)."""

    id: str
    prompt: Prompt
    max_tokens: int
    api: Api | None = None
    prompt_ids: tuple[int, ...] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


class PhaseOver(Exception):
    """The phase's share of time or requests is used; the walk goes on."""


@dataclass(slots=True)
class EndpointContext:
    """``emit`` writes an event to the record at once. ``observations`` are all so far, those of a
    resumed record too. ``deadline`` (monotonic seconds) ends the phase, ``end`` the walk."""

    targets: tuple[EndpointTarget, ...]
    prompts: tuple[Prompt, ...]
    plan: EndpointPlan
    emit: Callable[[Event], None]
    rng: random.Random
    end: float
    deadline: float = 0.0
    session: str | None = None
    prefix: str = ""
    observations: list[Observation] = field(default_factory=list)
    scratch: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    failed_in_row: int = 0
    previous: dict[str, Prompt] = field(default_factory=dict)
    """What each target was asked last; nothing where several calls overlapped."""

    @property
    def target(self) -> EndpointTarget:
        return self.targets[0]

    @property
    def logprobs(self) -> bool:
        return self.target.top > 1

    def short(self) -> list[Query]:
        """The cheapest strong question of each prompt: a few tokens with their alternatives, or
        the full length where the server returns none. The first token comes from the prefill, the
        others from decode steps, whose batch is another one."""
        if not self.logprobs:
            return self.long()
        n = min(SHORT_TOKENS, self.plan.max_new_tokens)
        return [Query(f"{p.id}/{n}", p, n) for p in self.prompts]

    def long(self) -> list[Query]:
        n = self.plan.max_new_tokens
        return [Query(f"{p.id}/{n}", p, n) for p in self.prompts]

    def connection(self, name: str) -> str:
        """A label that no earlier session used: another process has other connections."""
        return f"{self.prefix}{name}"

    def check(self) -> None:
        """Raise :class:`PhaseOver` when the time or the requests of this phase are used."""
        if time.monotonic() >= self.deadline:
            raise PhaseOver("out of time")
        left = self.target.client.limits.left
        if left is not None and left <= 0:
            raise PhaseOver("out of requests")

    async def ask(
        self,
        query: Query,
        *,
        phase: str,
        arm: str,
        unit: str,
        connection: str = "c0",
        target: EndpointTarget | None = None,
        factors: Mapping[str, Any] | None = None,
        overrides: Mapping[str, Any] | None = None,
        role: str = "trial",
        keep: bool = True,
        alone: bool = True,
        **context: Any,
    ) -> Observation | None:
        """One question in one arm; None where the call failed (counted, and the walk stops after
        several in a row). ``keep`` False leaves writing to the caller (a burst writes later);
        ``alone`` False says that other calls overlap with this one."""
        target = target or self.target
        if alone:
            context["after"] = self.follows(target, query.prompt)
        conditions: dict[str, Any] = {"concurrency": 1, **(factors or {})}
        if self.session is not None:
            conditions["session"] = self.session
        conditions = {k: v for k, v in conditions.items() if v is not None}
        try:
            async with asyncio.timeout(max(1.0, self.end - time.monotonic() + 5.0)):
                found = await target.ask(
                    query.prompt, max_tokens=query.max_tokens,
                    connection=self.connection(connection), phase=phase,
                    overrides={**query.overrides, **(overrides or {})}, factors=conditions,
                    api=query.api, prompt_ids=query.prompt_ids, query=query.id, role=role,
                )  # fmt: skip
        except TimeoutError as error:
            raise PhaseOver("out of time") from error
        except EndpointError as error:
            if error.kind == "spent":
                raise PhaseOver("out of requests") from error
            self.failed(error)
            return None
        self.failed_in_row = 0
        known = {k: v for k, v in context.items() if v is not None}
        found = with_context(found, arm=arm, unit=unit, **known)
        if keep:
            self.keep(found)
        return found

    def follows(self, target: EndpointTarget, prompt: Prompt) -> str | None:
        """Was the target asked the ``same`` prompt or ``another`` before? A server with one slot
        goes on from what it computed last. Remembers ``prompt`` for the next call."""
        before = self.previous.get(target.name)
        self.previous[target.name] = prompt
        return None if before is None else "same" if before == prompt else "another"

    def keep(self, observation: Observation) -> None:
        self.observations.append(observation)
        self.emit(observation)

    def failed(self, error: EndpointError) -> None:
        """Count a failed call; raises it when the server seems to be gone."""
        self.failures.append(error.message)
        self.failed_in_row += 1
        if self.failed_in_row >= GIVE_UP_AFTER:
            raise error


def chunks(items: Sequence[Any], size: int) -> list[list[Any]]:
    return [list(items[i : i + size]) for i in range(0, len(items), size)]
