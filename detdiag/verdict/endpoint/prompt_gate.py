"""Gate 0: equal requests must become equal prompts. One difference is proof."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from detdiag.evidence.finding import Evidence, Finding, Locus, Remedy
from detdiag.evidence.observation import Observation
from detdiag.verdict.endpoint.samples import LABELS


def prompt_finding(observations: Sequence[Observation]) -> Finding | None:
    """Failed where one query was read as other prompts, passed where counts could be compared."""
    by_query: dict[str, list[Observation]] = defaultdict(list)
    for one in observations:
        by_query[str(one.query)].append(one)
    compared = 0
    for query, members in by_query.items():
        ids = {o.prompt_token_ids for o in members if o.prompt_token_ids is not None}
        counts = sorted(_counts(members))
        if len(ids) > 1:
            return _failed(query, members, len(ids), "token ids", "input.token-ids-differ")
        if len(counts) > 1:
            shown = ", ".join(map(str, counts[:4]))
            return _failed(
                query, members, len(counts), f"token counts ({shown})", "input.prompt-tokens-differ"
            )
        compared += len(members) if ids or counts else 0
    if not compared:
        return None
    return Finding(
        "input", "input.prompt-tokens-differ", "passed",
        f"the same bytes were sent, and the server counted the same prompt tokens in {compared} "
        "replies (equal counts do not prove equal prompts)",
        evidence=(Evidence("replies with another prompt length", 0, compared, "replies"),),
    )  # fmt: skip


def _counts(members: Sequence[Observation]) -> set[int]:
    """Prompt lengths as told; some servers leave cached tokens out, so the sum is tried too."""
    told = [(c, o.factors.get("cached_tokens")) for o in members if (c := _prompt_tokens(o))]
    plain = {c for c, _ in told}
    whole = {c + n for c, n in told if isinstance(n, int)}
    known = all(isinstance(n, int) for _, n in told)
    return whole if known and len(plain) > 1 == len(whole) else plain


def _prompt_tokens(one: Observation) -> int | None:
    usage = (one.response or {}).get("usage")
    found = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    return found if isinstance(found, int) else None


def _failed(
    query: str, members: Sequence[Observation], kinds: int, what: str, rule: str
) -> Finding:
    label = _goes_with(members)
    where = f"; it goes with {label}" if label else ""
    return Finding(
        layer="input",
        rule=rule,
        outcome="failed",
        severity="high",
        subject="prompt",
        summary=(
            f"one request, sent {len(members)} times with the same bytes, was read as {kinds} "
            f"prompts with other {what}: the server changes the prompt (template, date, system "
            f"prompt or truncation){where}"
        ),
        evidence=(Evidence("prompts that one request became", kinds, len(members), "replies"),),
        locus=Locus(query=query),
        remedy=Remedy(
            "render the prompt yourself and send it to /v1/completions, or fix the server's chat "
            "template (a date or a clock in it is the usual reason)",
            verify="usage.prompt_tokens is the same in every reply",
        ),
        mechanism=True,
        explains=("*",),
        proven=True,
    )


def _goes_with(members: Sequence[Observation]) -> str | None:
    """A label of the reply that decides the prompt's length, if one does."""
    for name in LABELS:
        seen: dict[str, set[object]] = defaultdict(set)
        for one in members:
            seen[str(one.factors.get(name))].add(one.prompt_token_ids or _prompt_tokens(one))
        if len(seen) > 1 and all(len(v) == 1 for v in seen.values()):
            return name
    return None
