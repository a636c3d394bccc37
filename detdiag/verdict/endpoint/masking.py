"""Replies of a response cache: identical by construction, so they say nothing about the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from detdiag.evidence.finding import Evidence, Finding, Remedy
from detdiag.evidence.observation import Observation
from detdiag.verdict.endpoint.samples import context, usage, wall_s

FASTER: Final = 8.0
"""Repeats of a long reply that are this many times faster than unseen prompts of that length."""
SLOW_ENOUGH_S: Final = 0.2
LONG_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Masked:
    """``ids`` of observations that carry no evidence, and the reasons with their counts."""

    ids: frozenset[str]
    reasons: tuple[tuple[str, int], ...]
    of: int

    def finding(self) -> Finding | None:
        if not self.ids:
            return None
        why = "; ".join(f"{n} {reason}" for reason, n in self.reasons)
        return Finding(
            layer="batch",
            rule="batch.response-cache",
            outcome="inconclusive",
            severity="high",
            summary=(
                f"{len(self.ids)} of {self.of} replies come from a response cache ({why}): they "
                "are equal by construction and say nothing about the model"
            ),
            evidence=(Evidence("replies of a response cache", len(self.ids), self.of, "replies"),),
            remedy=Remedy(
                "ask past the cache; a response cache hides nondeterminism, it does not remove it",
                command='--header "Cache-Control: no-cache" (LiteLLM: "cache": {"no-cache": true} '
                "in the file of --request)",
                verify="replies then have ids of their own",
            ),
        )


def masked(observations: Sequence[Observation], others: Sequence[Observation] = ()) -> Masked:
    """Find replies that a cache gave: said by a header, by an id that comes again, by speed
    (``others`` hold the calls with unseen prompts)."""
    reasons: dict[str, set[str]] = {
        "say so in a header": {o.id for o in observations if context(o).get("response_cache")},
        "repeat the id and creation time of an earlier reply": _repeated(observations),
    }
    known = set().union(*reasons.values())
    reasons["come far faster than unseen prompts of the same length"] = (
        _too_fast(observations, others) - known
    )
    ids = frozenset().union(*reasons.values())
    counted = tuple((reason, len(found)) for reason, found in reasons.items() if found)
    return Masked(ids, counted, len(observations))


def _repeated(observations: Sequence[Observation]) -> set[str]:
    """Later replies whose id, creation time and text were seen before. A server whose one id
    stands for several texts numbers nothing by its ids."""
    seen: dict[tuple[str, str], str | None] = {}
    again: set[str] = set()
    for one in sorted(observations, key=lambda o: float(o.factors.get("time") or 0.0)):
        response = one.response or {}
        if not response.get("id") or response.get("created") is None:
            continue
        key = (str(response["id"]), str(response["created"]))
        if key not in seen:
            seen[key] = one.output.text
        elif seen[key] == one.output.text:
            again.add(one.id)
        else:
            return set()
    return again


def _too_fast(observations: Sequence[Observation], others: Sequence[Observation]) -> set[str]:
    """Repeats against the ``fresh`` calls (unseen prompts of the same length, same server)."""
    fresh = [wall_s(o) for o in others if context(o).get("phase") == "fresh"]
    usual = median(fresh) if len(fresh) >= 2 else 0.0
    if usual < SLOW_ENOUGH_S:
        return set()
    idle = [o for o in observations if context(o).get("phase") == "idle"]
    long = [o for o in idle if usage(o, "completion_tokens") >= LONG_TOKENS]
    quick = [o for o in long if wall_s(o) * FASTER < usual]
    return {o.id for o in quick} if len(quick) * 2 > len(long) else set()
