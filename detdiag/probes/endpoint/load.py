"""Bursts among idle blocks (ABBA), with fillers of varied length and a witness for each burst."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

from detdiag.evidence.observation import Observation
from detdiag.probes.endpoint.context import EndpointContext, PhaseOver, Query
from detdiag.probes.endpoint.fillers import WORD_COUNTS, filler
from detdiag.probes.endpoint.idle import alone_s, ask_twice, restless, settle
from detdiag.probes.endpoint.plan import BLOCK, CONNECTIONS, FILLER_TOKENS
from detdiag.probes.endpoint.replay import fork_queries, tail_queries
from detdiag.targets.endpoint import EndpointError, with_context, with_factors
from detdiag.targets.endpoint.witness import Call, Gauge, in_flight, witness
from detdiag.verdict.endpoint.load_arms import ENOUGH_REPLIES, LoadResult, load_result
from detdiag.verdict.endpoint.samples import read_samples
from detdiag.verdict.stats import ALPHA

SETTLED = ALPHA / 5
"""Raw p at which no further look is taken: leaves room for Holm over the other tests."""


def probes_in(size: int) -> int:
    """How many of a burst's requests are the question itself; the rest are fillers."""
    return {8: 6, 16: 8, 32: 12}.get(size, max(2, size // 2))


async def load(context: EndpointContext) -> str | None:
    """Looks at the burst arm until it is decided or the plan ends; returns why it is untested."""
    if not context.plan.first_look:
        return "too few requests for bursts (--max-requests)"
    await _weigh_fillers(context)
    tails = tail_queries(context)
    for query in tails:
        await ask_twice(context, query, context.target)
    context.scratch["tails"] = tails
    sizes: Sequence[int] = context.plan.first_look
    done = context.scratch.get("looks", 0)
    for look in range(done + 1, context.plan.looks + 1):
        await _look(context, look, sizes if look == 1 else context.plan.next_look)
        context.scratch["looks"] = look
        if not _undecided(context, look):
            break
    return unwitnessed(_result(context))


async def _weigh_fillers(context: EndpointContext) -> None:
    """What a short and a long filler take alone (the faster of two each): with that, a burst that
    is faster than its requests one after the other is seen without the server's help."""
    weights: list[tuple[int, float]] = []
    trip = context.scratch.get("round_trip_s", 0.0)
    for number in (0, len(WORD_COUNTS) - 1):
        found = []
        for again in range(2):
            context.check()
            prompt = filler(context.rng, number + again * len(WORD_COUNTS))
            context.follows(context.target, prompt)
            call = await _fill(context, prompt, _filler_tokens(context), 0)
            if call is not None:
                found.append((call.tokens, max(0.0, call.end_s - call.sent_s - trip)))
        if found:
            weights.append(min(found, key=lambda one: one[1]))
    context.scratch["weights"] = weights


def _filler_alone_s(context: EndpointContext, tokens: int) -> float:
    """Time of a filler alone, on the line through the short and the long one."""
    weights = context.scratch.get("weights", [])
    if not weights:
        return 0.0
    (low, fast), (high, slow) = weights[0], weights[-1]
    slope = max(0.0, (slow - fast) / (high - low)) if high > low else 0.0
    return max(0.0, fast + slope * (tokens - low))


def _filler_tokens(context: EndpointContext) -> int:
    return FILLER_TOKENS if context.logprobs else max(FILLER_TOKENS, context.plan.max_new_tokens)


def _questions(context: EndpointContext) -> list[Query]:
    """Short ones with a full-length one and ends of answers among them, and the forks seen so far
    replayed."""
    short, long = context.short(), context.long()
    again = context.scratch.get("tails") or short
    base = [*short, *again, long[0]] if context.logprobs else short
    if not context.scratch.get("forks"):
        context.scratch["forks"] = fork_queries(context)
    return [*context.scratch["forks"], *base]


def _undecided(context: EndpointContext, look: int) -> bool:
    result = _result(context)
    if result is None or result.witness == "none" or restless(context):
        return False
    if result.fresh:
        return result.p > SETTLED
    return result.witnessed_replies < ENOUGH_REPLIES * 2


def _result(context: EndpointContext) -> LoadResult | None:
    trials = [o for o in context.observations if o.role == "trial"]
    return load_result(read_samples(trials))


def unwitnessed(result: LoadResult | None) -> str | None:
    if result is None:
        return "no burst was run"
    if result.witness == "none" and not result.fresh:
        return (
            "bursts were sent, but neither /metrics nor their timing shows that the server ran "
            "requests together"
        )
    return None


async def _look(context: EndpointContext, look: int, sizes: Sequence[int]) -> None:
    """Pairs of an idle block and a burst, first one, then the other in front (ABBA). A burst asks
    what its own block asked, so that every question has an idle arm."""
    start = 0
    for number, size in enumerate(sizes):
        name = f"{look}.{number}"
        questions = _questions(context)
        mine = [questions[(start + i) % len(questions)] for i in range(max(BLOCK, probes_in(size)))]
        start += BLOCK
        if number % 2 == 0:
            await _idle_block(context, look, name, mine[:BLOCK])
        _afford(context, size)
        await _burst(context, look, name, size, mine[: probes_in(size)])
        if number % 2 == 1:
            await _idle_block(context, look, name, mine[:BLOCK])


def _afford(context: EndpointContext, size: int) -> None:
    context.check()
    left = context.target.client.limits.left
    if left is not None and left < size:
        raise PhaseOver("out of requests")


async def _idle_block(
    context: EndpointContext, look: int, name: str, questions: Sequence[Query]
) -> None:
    await settle(context, questions[0])
    for index, query in enumerate(questions):
        context.check()
        await context.ask(
            query, phase="load", arm="idle", unit=f"block-{name}", look=look,
            connection=f"c{index % CONNECTIONS}",
        )  # fmt: skip


async def _burst(
    context: EndpointContext, look: int, name: str, size: int, questions: Sequence[Query]
) -> None:
    """Fillers and questions at once; written down when the witness is known."""
    number = context.scratch.get("fillers", 0)
    fillers = [
        filler(context.rng, number + i, context.scratch.get("longest", WORD_COUNTS[-1]))
        for i in range(size - len(questions))
    ]
    context.scratch["fillers"] = number + len(fillers)
    length = _filler_tokens(context)
    with Gauge(context.target.client, context.target.capabilities.metrics) as gauge:
        tasks = [_fill(context, prompt, length, i) for i, prompt in enumerate(fillers)]
        asked = [
            context.ask(
                query, phase="load", arm="burst", unit=f"burst-{name}", look=look, keep=False,
                alone=False,
                connection=f"c{i}" if i < CONNECTIONS else f"s{i - CONNECTIONS}", size=size,
                factors={"concurrency": None},
            )
            for i, query in enumerate(questions)
        ]  # fmt: skip
        found = await asyncio.gather(*tasks, *asked, return_exceptions=True)
    context.previous.clear()  # which of them the server ended with is not known
    _keep_burst(context, gauge, size, found)


def _keep_burst(context: EndpointContext, gauge: Gauge, size: int, found: Sequence[object]) -> None:
    replies = [o for o in found if isinstance(o, Observation)]
    calls = [o for o in found if isinstance(o, Call)]
    tokens = sum(c.tokens for c in calls) + sum(map(_tokens, replies))
    calls = [replace(c, alone_s=_filler_alone_s(context, c.tokens)) for c in calls]
    calls += [_call(context, o) for o in replies]
    seen = witness(gauge, calls, context.scratch.get("round_trip_s", 0.0))
    for one in replies:
        if seen.kind != "none":
            one = with_factors(one, concurrency=size, in_flight_tokens=_bucket(tokens))
        context.keep(
            with_context(
                one, witness=seen.kind, running=seen.running, speedup=_short(seen.speedup),
                together=in_flight(calls, _call(context, one)), tokens_in_flight=tokens,
            )
        )  # fmt: skip
    for error in found:
        if isinstance(error, BaseException):
            raise error


async def _fill(context: EndpointContext, prompt: object, length: int, index: int) -> Call | None:
    """One filler; what it answers does not matter, only that it ran."""
    from detdiag.targets.prompts import Prompt

    assert isinstance(prompt, Prompt)
    target = context.target
    path, body = target.body(prompt, max_tokens=length, logprobs=False)
    try:
        async with asyncio.timeout(max(1.0, context.end - time.monotonic() + 5.0)):
            reply, decoded = await target.client.post_json(
                path, body, connection=context.connection(f"f{index}"), retry=False
            )
    except TimeoutError:
        return None
    except EndpointError as error:
        if error.status in (400, 413, 422):
            context.scratch["longest"] = WORD_COUNTS[1]  # longer than the model's context
        return None
    usage = decoded.get("usage") if isinstance(decoded, dict) else None
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return Call(reply.sent_s, reply.end_s, total if isinstance(total, int) else 0)


def _call(context: EndpointContext, one: Observation) -> Call:
    told = (one.response or {}).get("context", {})
    return Call(told["sent_s"], told["end_s"], _tokens(one), alone_s(context, str(one.query)))


def _tokens(one: Observation) -> int:
    usage = (one.response or {}).get("usage")
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) else 0


def _bucket(tokens: int) -> int:
    """The power of two at or below: a dose, not a name for each burst."""
    return 1 << max(0, tokens.bit_length() - 1)


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
