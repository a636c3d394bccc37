"""Replay: the prompt and an answer up to some token, then the next tokens only.

At a fork (where two answers parted) it is the cheapest strong question. At the end of an answer it
meets the longest contexts for the price of a few tokens: some kernels let the batch into the bits
only from some length on.
"""

from __future__ import annotations

from collections.abc import Sequence

from detdiag.evidence.observation import Observation, Output
from detdiag.probes.endpoint.context import EndpointContext, Query
from detdiag.probes.endpoint.plan import SHORT_TOKENS
from detdiag.targets.endpoint import wire
from detdiag.targets.prompts import Prompt
from detdiag.verdict.outcome import first_fork

MOST = 2
WORTH = 4 * SHORT_TOKENS
"""Tokens of an answer below which its end costs about as much as the whole."""


def fork_queries(context: EndpointContext) -> list[Query]:
    """One-token questions at the first forks seen."""
    out = []
    for prompt in context.prompts:
        query_id = f"{prompt.id}/{context.plan.max_new_tokens}"
        found = _fork([o for o in context.observations if o.query == query_id])
        if found is None:
            continue
        query = _replay(context, prompt, *found, 1)
        if query is not None:
            out.append(query)
    return out[:MOST]


def tail_queries(context: EndpointContext) -> list[Query]:
    """The last tokens of each prompt's answer of full length, where log-probabilities tell more
    than the text and the server can go on with a given answer."""
    if not context.logprobs:
        return []
    out = []
    for prompt in context.prompts:
        query_id = f"{prompt.id}/{context.plan.max_new_tokens}"
        whole = [o for o in context.observations if o.query == query_id and o.role == "trial"]
        tokens = len(whole[0].output.positions or ()) if whole else 0
        if tokens < WORTH:
            continue
        query = _replay(context, prompt, whole[0], tokens - SHORT_TOKENS, SHORT_TOKENS)
        if query is not None:
            out.append(query)
    return out[: context.plan.tails]


def _fork(members: Sequence[Observation]) -> tuple[Observation, int] | None:
    """An answer and the first token at which another answer leaves it."""
    by_text: dict[object, Observation] = {}
    for one in members:
        if one.role == "trial":
            by_text.setdefault(one.output.text, one)
    firsts = list(by_text.values())
    for other in firsts[1:]:
        at = first_fork(firsts[0].output, other.output)
        if at:
            return firsts[0], at
    return None


def _replay(
    context: EndpointContext, prompt: Prompt, one: Observation, at: int, tokens: int
) -> Query | None:
    """``tokens`` more after the first ``at`` of an answer, for what the server offers: token ids to
    ``/v1/completions``, else ``continue_final_message``; None where it offers neither."""
    caps = context.target.capabilities
    ids = one.output.token_ids
    if caps.completions and one.prompt_token_ids and ids is not None and caps.completions_top:
        whole = (*one.prompt_token_ids, *ids[:at])
        return Query(f"{prompt.id}@{at}/{tokens}", prompt, tokens, "completions", whole)
    prefix = _prefix_text(one.output, at)
    if caps.chat and caps.continues and prefix:
        messages = [*wire.chat_messages(prompt), {"role": "assistant", "content": prefix}]
        overrides = {
            "messages": messages,
            "continue_final_message": True,
            "add_generation_prompt": False,
        }
        return Query(f"{prompt.id}@{at}/{tokens}", prompt, tokens, "chat", None, overrides)
    return None


def _prefix_text(output: Output, at: int) -> str | None:
    tokens = [p.token for p in (output.positions or ())[:at]]
    if len(tokens) < at or any(t is None or t.startswith("bytes:") for t in tokens):
        return None
    text = "".join(t for t in tokens if t is not None)
    return text if (output.text or "").startswith(text) else None
