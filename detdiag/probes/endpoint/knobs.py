"""The knob contrast, for servers without log-probabilities: does narrowing the draw help?"""

from __future__ import annotations

from detdiag.probes.endpoint.context import EndpointContext, Query
from detdiag.probes.endpoint.idle import restless
from detdiag.verdict.endpoint.samples import by_group, read_samples

ARMS: dict[str, dict[str, object]] = {
    "as-sent": {},
    "narrow": {"top_p": 1e-6},
    "seed": {"seed": 20},
}
MOST = 2
IMPOSSIBLE = 5.0
"""A ``top_p`` that no server accepts that reads it."""


async def knobs(context: EndpointContext) -> str | None:
    """Interleaved arms on the questions that did not repeat at idle."""
    if context.logprobs:
        return None  # log-probabilities show draws directly
    if not restless(context):
        return "no log-probabilities to look at; the idle arm repeats, so nothing that draws shows"
    read = await _reads_top_p(context)
    for turn in range(context.plan.knobs):
        for query in _restless_queries(context)[:MOST]:
            for name in context.rng.sample(sorted(ARMS), len(ARMS)):
                context.check()
                await context.ask(
                    query, phase="knob", arm="knob", unit=f"knob-{turn}", knob=name, read=read,
                    overrides=ARMS[name], role="intervention", connection="c0",
                )  # fmt: skip
    return None


async def _reads_top_p(context: EndpointContext) -> bool:
    """A server that takes an impossible value may drop the parameter: an arm that it ignores
    clears nothing."""
    query = context.short()[0]
    path, body = context.target.body(
        query.prompt, max_tokens=query.max_tokens, overrides={"top_p": IMPOSSIBLE}
    )
    context.check()
    reply = await context.target.client.call("POST", path, body, connection="c0", retry=False)
    return reply.status in (400, 422)


def _restless_queries(context: EndpointContext) -> list[Query]:
    idle = [
        s
        for s in read_samples([o for o in context.observations if o.role == "trial"])
        if s.arm == "idle"
    ]
    apart = {g.split("|")[0] for g, m in by_group(idle).items() if len({s.outcome for s in m}) > 1}
    return [q for q in context.short() if q.id in apart] or context.short()
