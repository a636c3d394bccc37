"""Pairs of recorded observations of one query: which factors differ, whether the outcome does,
and how the routing compares up to the first fork."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal

from detdiag.evidence.observation import Observation, Route
from detdiag.layers import CONTROL_FACTOR, ORDER_FACTORS
from detdiag.moe.compare import Comparison, Place, by_place, compare_routes, scored_alike

Divergence = Literal["none", "bitwise", "token"]

_MAX_PAIRS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Pair:
    """Two comparable observations. ``factors`` are the names that differ (repeat and time left
    out); ``fork`` is the first generated token that differs."""

    query: str
    left: Observation
    right: Observation
    factors: tuple[str, ...]
    divergence: Divergence
    fork: int | None
    routing: Comparison


def routed_pairs(observations: Iterable[Observation]) -> list[Pair]:
    """All pairs of trials of one query that both recorded their routing."""
    by_query: dict[str, list[Observation]] = defaultdict(list)
    for observation in observations:
        if observation.routing and observation.role == "trial":
            by_query[_query_key(observation)].append(observation)
    return [p for query, group in by_query.items() for p in _pairs(query, group)]


def _query_key(observation: Observation) -> str:
    if observation.query is not None:
        return observation.query
    return repr(observation.request) if observation.request is not None else ""


def _pairs(query: str, group: Sequence[Observation]) -> list[Pair]:
    cache: dict[tuple[Any, ...], Comparison] = {}
    keys = {id(o): _routing_key(o.routing or ()) for o in group}
    pairs: list[Pair] = []
    for left, right in combinations(group, 2):
        if len(pairs) >= _MAX_PAIRS:
            break
        if not _same_prompt(left, right):
            continue
        divergence, fork = outcome(left, right)
        last = last_shared_position(left, right, fork)
        key = (keys[id(left)], keys[id(right)], last)
        if key not in cache:
            cache[key] = compare_routes(
                by_place(left.routing or (), last), by_place(right.routing or (), last)
            )
        factors = differing_factors(left, right)
        pairs.append(Pair(query, left, right, factors, divergence, fork, cache[key]))
    return pairs


def _routing_key(routes: Sequence[Route]) -> int:
    return hash(
        tuple(
            (r.block, r.position, r.experts, r.weights, r.scores, r.score_dtype, r.dropped)
            for r in routes
        )
    )


def _same_prompt(left: Observation, right: Observation) -> bool:
    a, b = left.prompt_token_ids, right.prompt_token_ids
    return a is None or b is None or a == b


def differing_factors(left: Observation, right: Observation) -> tuple[str, ...]:
    """Names of conditions that differ; the control and the order in time are not conditions."""
    names = left.factors.keys() | right.factors.keys()
    skip = ORDER_FACTORS | {CONTROL_FACTOR}
    return tuple(sorted(n for n in names - skip if left.factors.get(n) != right.factors.get(n)))


def outcome(left: Observation, right: Observation) -> tuple[Divergence, int | None]:
    """Strongest difference in a channel that both recorded, and the first generated token that
    differs (None: no fork seen)."""
    a, b = left.output, right.output
    fork: int | None = None
    if a.token_ids is not None and b.token_ids is not None and a.token_ids != b.token_ids:
        fork = _first_difference(a.token_ids, b.token_ids)
    if fork is not None or (a.text is not None and b.text is not None and a.text != b.text):
        return "token", fork
    if a.positions is not None and b.positions is not None and a.positions != b.positions:
        return "bitwise", None
    if a.logit_digests is not None and b.logit_digests is not None:
        return ("none" if a.logit_digests == b.logit_digests else "bitwise"), None
    return "none", None


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))


def last_shared_position(left: Observation, right: Observation, fork: int | None) -> int | None:
    """Last position with equal context: after the fork positions are never compared.

    A record does not say whether its positions count prompt tokens. They do where it holds more
    of them than the prompt has; else positions past the fork are let in only as long as the
    lowest block scores them alike, because another token there scores nothing like it.
    """
    if fork is None:
        return None
    prompt = left.prompt_token_ids or right.prompt_token_ids
    a, b = left.routing or (), right.routing or ()
    highest = max((r.position for r in (*a, *b)), default=0)
    if prompt is not None and highest >= len(prompt):
        return len(prompt) - 1 + fork
    return _extended_by_scores(by_place(a), by_place(b), fork)


def _extended_by_scores(a: Mapping[Place, Route], b: Mapping[Place, Route], fork: int) -> int:
    shared = a.keys() & b.keys()
    lowest = min((block for block, _ in shared), default=0)
    last = fork
    for position in sorted(p for block, p in shared if block == lowest and p > fork):
        if not scored_alike(a[lowest, position], b[lowest, position]):
            break
        last = position
    return last


def covers_fork(pair: Pair) -> bool:
    """Every recorded block has every position up to the fork in both records."""
    last = last_shared_position(pair.left, pair.right, pair.fork)
    if last is None:
        return False
    for observation in (pair.left, pair.right):
        places = {(r.block, r.position) for r in observation.routing or ()}
        blocks = {block for block, _ in places}
        if any((b, p) not in places for b in blocks for p in range(last + 1)):
            return False
    return True
