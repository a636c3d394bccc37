"""Idle baseline: primed, one request at a time, several connections in turn, all replicas."""

from __future__ import annotations

import statistics
import time

from detdiag.evidence.observation import Observation
from detdiag.probes.endpoint.context import EndpointContext, PhaseOver, Query
from detdiag.probes.endpoint.fillers import filler
from detdiag.probes.endpoint.plan import CONNECTIONS, FRESH, fit_to_time
from detdiag.targets.endpoint import EndpointError, EndpointTarget
from detdiag.verdict.endpoint.samples import distinct, read_samples

REVISITS = 3


async def prime(context: EndpointContext) -> str | None:
    """Two identical calls a question and server, discarded: caches and lazy kernels are then
    warm. The first prompt's calls say how fast the server is, and size the rest of the walk."""
    await _prime(context, context.prompts[0].id)
    context.scratch["round_trip_s"] = await _round_trip_s(context.target)
    told = _fit(context)
    for prompt in context.prompts[1:]:
        await _prime(context, prompt.id)
    return told


async def _prime(context: EndpointContext, prompt_id: str) -> None:
    questions = {q.id: q for q in [*context.short(), *context.long()] if q.prompt.id == prompt_id}
    for target in context.targets:
        for query in questions.values():
            await ask_twice(context, query, target)


async def ask_twice(context: EndpointContext, query: Query, target: EndpointTarget) -> None:
    """Two calls that are no evidence: what they cache is then there for all that follow."""
    for _ in range(2):
        context.check()
        await context.ask(
            query, phase="prime", arm="prime", unit="prime", target=target, role="intervention"
        )


def _fit(context: EndpointContext) -> str | None:
    """Size the rest of the walk by what a warm call took; says so where that cuts the plan."""
    times = {one.query: _wall_s(one) for one in context.observations if one.role != "trial"}
    short = max((times.get(q.id, 0.0) for q in context.short()), default=0.0)
    long = max((times.get(q.id, 0.0) for q in context.long()), default=0.0)
    left = max(0.0, context.end - time.monotonic())
    before, given = context.plan, len(context.prompts)
    context.plan, kept = fit_to_time(
        before, given, len(context.targets), short_s=short, long_s=long, left_s=left
    )
    context.prompts = context.prompts[:kept]
    if context.plan == before and kept == given:
        return None
    return (
        f"a call takes {short:.2g} s ({long:.2g} s in full length), so the plan is cut to the "
        f"budget: {kept} of {given} prompts, {context.plan.idle} and {context.plan.long} idle "
        f"calls each, bursts of {', '.join(map(str, sorted(set(context.plan.first_look))))}"
    )


def _wall_s(one: Observation) -> float:
    told = (one.response or {}).get("context", {})
    return float(told.get("end_s", 0.0)) - float(told.get("sent_s", 0.0))


async def _round_trip_s(target: EndpointTarget) -> float:
    """Shortest of three calls that do no work."""
    walls = []
    for _ in range(3):
        try:
            reply = await target.client.call("GET", "v1:/models", retry=False, counted=False)
        except EndpointError:
            continue
        walls.append(reply.wall_s)
    return min(walls, default=0.0)


async def sequential(context: EndpointContext) -> str | None:
    """The idle arm itself: every question on every connection and server, in shuffled rounds."""
    counted = await _tenancy_start(context)
    try:
        await _rounds(context)
        await _fresh(context)
    except PhaseOver:
        await _tenancy_end(context, counted)
        raise
    await _tenancy_end(context, counted)
    return None


async def _rounds(context: EndpointContext) -> None:
    questions = [(q, context.plan.idle) for q in context.short()]
    if context.logprobs:
        questions += [(q, context.plan.long) for q in context.long()]
    most = max(n for _, n in questions)
    for turn in range(most):
        due = [q for q, n in questions if turn * n // most != (turn + 1) * n // most]
        for target in _turned(context, turn):
            for query in context.rng.sample(due, len(due)):
                context.check()
                await context.ask(
                    query, phase="idle", arm="idle", unit=f"idle-{turn // 2}", target=target,
                    connection=f"c{turn % CONNECTIONS}",
                )  # fmt: skip


def _turned(context: EndpointContext, turn: int) -> list[EndpointTarget]:
    """Servers in ABBA order, so that time is no difference between them."""
    targets = list(context.targets)
    return targets if turn % 2 == 0 else targets[::-1]


async def settle(context: EndpointContext, query: Query) -> None:
    """One call that is no evidence, unless the server was asked this prompt last: one with a single
    slot computes it anew after any other."""
    if context.previous.get(context.target.name) != query.prompt:
        context.check()
        await context.ask(query, phase="prime", arm="prime", unit="prime", role="intervention")


async def _fresh(context: EndpointContext) -> None:
    """Unseen prompts of the same length: what a reply takes when it must be computed."""
    for number in range(FRESH):
        context.check()
        prompt = filler(context.rng, number + 1)
        await context.ask(
            Query(f"fresh-{number}", prompt, context.plan.max_new_tokens), phase="fresh",
            arm="fresh", unit="fresh", role="intervention",
        )  # fmt: skip


def alone_s(context: EndpointContext, query_id: str) -> float:
    """The server's median time for one idle call of a question, round trip taken off; 0 where
    it was never asked alone."""
    trip = context.scratch.get("round_trip_s", 0.0)
    walls = []
    for one in context.observations:
        told = (one.response or {}).get("context", {})
        if one.query == query_id and told.get("arm") == "idle":
            walls.append(told["end_s"] - told["sent_s"] - trip)
    return max(0.0, statistics.median(walls)) if walls else 0.0


async def connections(context: EndpointContext) -> str | None:
    """One call each on new connections: a balancer that spreads connections shows itself. Where
    answers differ, several connections are visited again to see whether each is constant."""
    query = context.short()[0]
    await settle(context, query)
    for number in range(context.plan.spread):
        context.check()
        await context.ask(
            query, phase="connections", arm="idle", unit=f"spread-{number // 4}",
            connection=f"s{number}",
        )  # fmt: skip
    if not restless(context):
        return None
    names = [f"c{i}" for i in range(CONNECTIONS)] + [f"s{i}" for i in range(CONNECTIONS)]
    for turn in range(REVISITS):
        for name in context.rng.sample(names, len(names)):
            context.check()
            await context.ask(
                query, phase="connections", arm="idle", unit=f"revisit-{turn}", connection=name
            )
    return None


def restless(context: EndpointContext) -> bool:
    """Does the idle arm (first tokens where they are known) show more than one answer?"""
    idle = [
        o
        for o in context.observations
        if o.role == "trial" and (o.response or {}).get("context", {}).get("arm") == "idle"
    ]
    return distinct(read_samples(idle)) > 1


async def _tenancy_start(context: EndpointContext) -> tuple[float, int] | None:
    """(requests that the server counts, requests that we sent) before the idle arm."""
    found = await _counter(context)
    return None if found is None else (found, context.target.client.limits.sent)


async def _tenancy_end(context: EndpointContext, before: tuple[float, int] | None) -> None:
    """Are all requests that the server counted ours? Then nobody else shares it, and no other
    server answers at this address."""
    from detdiag.evidence.finding import Evidence, Finding

    after = await _counter(context)
    if before is None or after is None or len(context.targets) > 1:
        return
    counted, ours = round(after - before[0]), context.target.client.limits.sent - before[1]
    sole = counted == ours
    context.emit(
        Finding(
            "version", "version.server-tenancy", "not_applicable",
            f"the server's counter rose by {counted} while {ours} requests were sent"
            + (": nobody else uses it, and it alone answers" if sole else ""),
            evidence=(Evidence("requests counted by the server", counted, ours, "requests"),),
            data={"sole_tenant": sole},
        )
    )  # fmt: skip


async def _counter(context: EndpointContext) -> float | None:
    import asyncio

    from detdiag.targets.endpoint.witness import COUNTERS, read_metric

    name = COUNTERS.get(context.target.capabilities.metrics or "")
    if name is None:
        return None
    until = time.monotonic() + 2.0
    last = await read_metric(context.target.client, name)
    while last is not None and time.monotonic() < until:
        await asyncio.sleep(0.25)  # counters of several processes lag a little
        now = await read_metric(context.target.client, name)
        if now == last:
            break
        last = now
    return last
