"""Runs of a server: one request at a time, and bursts in which the prompts are in flight together.

The prompts themselves fill the bursts, so that load costs no more requests than the idle runs.
Every burst holds each of its prompts equally often; it is one call for the bound.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from detdiag.errors import DetdiagError
from detdiag.evidence.observation import Observation
from detdiag.evidence.record import RecordWriter
from detdiag.score.plan import Plan, Tell, Watch
from detdiag.score.progress import Progress
from detdiag.score.rounds import copies_in_burst, windows
from detdiag.targets.endpoint import EndpointError, EndpointTarget, with_context, with_factors
from detdiag.targets.endpoint.witness import Call, Gauge, witness
from detdiag.targets.prompts import Prompt

GIVE_UP_AFTER = 3
"""Calls in a row that fail (each after its retries) before the server counts as gone."""


@dataclass(slots=True)
class EndpointRuns:
    """One scoring of a server; ``stopped`` says at the end why it ended."""

    target: EndpointTarget
    prompts: tuple[Prompt, ...]
    plan: Plan
    concurrency: int
    record: RecordWriter
    watch: Watch
    progress: Progress
    stopped: str = ""
    tokens: int = 0
    failures: list[str] = field(default_factory=list)
    witnessed: int = 0
    bursts: int = 0
    _in_row: int = 0
    _round_trip_s: float = 0.0
    _idle_s: float = 0.0

    def go(self, tell: Tell) -> None:
        asyncio.run(self._go(tell))

    async def _go(self, tell: Tell) -> None:
        """Explore, print the plan with its cost, and run until done, decided or out of time."""
        began = time.monotonic()
        try:
            await self.target.explore(self.prompts[0])
            self._round_trip_s = await self._no_work_s()
            self._afford()
            first_s = [await self._timed(condition) for condition in self.plan.conditions]
            for line in self.plan.lines(first_s, self._prompt_tokens()):
                tell(line)
            self.progress.start(self.plan.runs)
            await self._blocks(began)
        except EndpointError as error:
            if not self.watch.observations:
                raise
            self.stopped = f"the server stopped answering: {error.message}"
        finally:
            await self.target.client.aclose()
        self.stopped = self.stopped or "all runs made"

    def _afford(self) -> None:
        """Fewer runs where ``--max-requests`` does not allow all: each condition gets its share."""
        left = self.target.client.limits.left
        if left is None:
            return
        each = left // (len(self.prompts) * len(self.plan.conditions))
        if each < 1:
            raise DetdiagError(
                f"--max-requests leaves {left} requests, not one for each prompt and condition"
            )
        runs = min(self.plan.runs, each)
        most = copies_in_burst(len(self.prompts), self.concurrency, runs, len(self.plan.conditions))
        copies = min(self.plan.copies, most)
        runs = max(copies, runs // copies * copies)
        self.plan = replace(self.plan, runs=runs, copies=copies)

    async def _blocks(self, began: float) -> None:
        done, order = self.plan.copies, list(self.plan.conditions)
        while done < self.plan.runs and not self.stopped:
            until = min(self.plan.runs, (done // self.plan.block + 1) * self.plan.block)
            for condition in order:
                step = self.plan.copies if condition == "load" else 1
                for number in range(done, until, step):
                    await self._round(condition, number)
                    self.progress.at(done, until, number, condition)
            done = until
            order.reverse()
            self._maybe_stop(began)

    def _maybe_stop(self, began: float) -> None:
        left = self.target.client.limits.left
        if decided := self.watch.decided():
            self.stopped = f"target {decided}"
        elif self.plan.budget_s is not None and time.monotonic() - began > self.plan.budget_s:
            self.stopped = "out of budget"
        elif left is not None and left < len(self.prompts):
            self.stopped = "out of requests"

    async def _timed(self, condition: str) -> float:
        """Seconds of the first ``copies`` rounds, over their number."""
        began = time.monotonic()
        numbers = (0,) if condition == "load" else range(self.plan.copies)
        for number in numbers:
            await self._round(condition, number)
        return (time.monotonic() - began) / self.plan.copies

    async def _no_work_s(self) -> float:
        """Shortest of three calls for which the model does nothing."""
        walls = []
        for _ in range(3):
            try:
                reply = await self.target.client.call(
                    "GET", "v1:/models", retry=False, counted=False
                )
            except EndpointError:
                continue
            walls.append(reply.wall_s)
        return min(walls, default=0.0)

    async def _round(self, condition: str, number: int) -> None:
        """One run of every prompt (``copies`` of them in a burst)."""
        if condition == "solo":
            for prompt in self.prompts:
                found = await self._ask(prompt, f"{prompt.id}-{number}", number, "c0", solo=True)
                if found is not None:
                    self._keep(found)
            return
        for place, window in enumerate(windows(self.prompts, self.concurrency)):
            await self._burst(window, f"w{place}-{number}", number)

    async def _burst(self, window: Sequence[Prompt], name: str, number: int) -> None:
        client = self.target.client
        asked = [p for _ in range(self.plan.copies) for p in window]
        with Gauge(client, self.target.capabilities.metrics) as gauge:
            found = await asyncio.gather(
                *(self._ask(p, name, number, f"b{i}", solo=False) for i, p in enumerate(asked)),
                return_exceptions=True,
            )
        for error in found:
            if isinstance(error, BaseException):
                raise error
        replies = [one for one in found if isinstance(one, Observation)]
        seen = witness(gauge, [_call(o, self._idle_s) for o in replies], self._round_trip_s)
        self.bursts += 1
        self.witnessed += seen.kind != "none"
        for one in replies:
            if seen.kind != "none":
                one = with_factors(one, concurrency=len(asked))
            self._keep(with_context(one, witness=seen.kind, running=seen.running))

    async def _ask(
        self, prompt: Prompt, burst: str, number: int, connection: str, *, solo: bool
    ) -> Observation | None:
        """One request; None where it failed. Raises when the server seems to be gone."""
        factors: dict[str, Any] = {"repeat": number}
        if solo:
            factors["concurrency"] = 1
        try:
            found = await self.target.ask(
                prompt,
                max_tokens=self.plan.max_new_tokens,
                connection=connection,
                burst=burst,
                phase="score",
                factors=factors,
                query=prompt.id,
            )
        except EndpointError as error:
            self.failures.append(error.message)
            self._in_row += 1
            if self._in_row >= GIVE_UP_AFTER or error.kind == "spent":
                raise
            return None
        self._in_row = 0
        self.tokens += _new_tokens(found)
        if solo:
            self._note_idle(found)
        arm = "idle" if solo else "burst"
        return with_context(found, arm=arm, round=number)

    def _note_idle(self, one: Observation) -> None:
        """The shortest time that any idle request took on the server."""
        call = _call(one, 0.0)
        took_s = max(0.0, call.end_s - call.sent_s - self._round_trip_s)
        self._idle_s = min(self._idle_s, took_s) if self._idle_s else took_s

    def _prompt_tokens(self) -> float | None:
        """Tokens of a prompt as the server counts them, on average over the first round."""
        usage = [(one.response or {}).get("usage") for one in self.watch.observations]
        told = [u["prompt_tokens"] for u in usage if isinstance(u, dict) and u.get("prompt_tokens")]
        return sum(told) / len(told) if told else None

    def _keep(self, one: Observation) -> None:
        self.record.write(one)
        self.watch.observations.append(one)

    def facts(self) -> dict[str, Any]:
        """What the method section says at the end."""
        out: dict[str, Any] = {"stopped": self.stopped, "tokens": self.tokens}
        out["requests"] = self.target.client.limits.sent
        if self.failures:
            shown = dict.fromkeys(self.failures)
            out["failed"] = {"n": len(self.failures), "why": list(shown)[:5]}
        if self.bursts:
            out["load"] = {"bursts": self.bursts, "witnessed": self.witnessed}
        return out


def _call(one: Observation, alone_s: float) -> Call:
    told = (one.response or {}).get("context", {})
    return Call(told["sent_s"], told["end_s"], _new_tokens(one), alone_s)


def _new_tokens(one: Observation) -> int:
    usage = (one.response or {}).get("usage")
    told = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if isinstance(told, int):
        return told
    return len(one.output.token_ids or one.output.positions or ())


def target_facts(target: EndpointTarget, prompts: int) -> dict[str, Any]:
    """The target as the record's header names it."""
    return {"kind": "endpoint", "name": target.name, "model": target.model, "prompts": prompts}


def check_concurrency(concurrency: int) -> None:
    if concurrency > 256:
        raise DetdiagError(f"--concurrency {concurrency}: expected 256 at most")
