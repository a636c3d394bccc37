"""Findings from recorded routing, without torch: is a routing change the cause or a symptom?

Three questions per pair of observations of one query: does the outcome differ, where does an
expert choice change first, and were the router's scores equal there. A change is a mechanism
only if it starts at equal scores *and* goes with the outcome: it shows in every differing pair
of the factors it explains, stays away from pairs whose outcome agrees (healthy noise), and no
score moved anywhere without such a change upstream.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detdiag.evidence.finding import Evidence, Finding, Locus
from detdiag.evidence.observation import Observation
from detdiag.layers import CONTROL_FACTOR
from detdiag.moe.compare import Flip, Place, by_place, scored_alike
from detdiag.moe.pairs import Pair, covers_fork, last_shared_position, routed_pairs
from detdiag.moe.remedies import REMEDIES
from detdiag.moe.stats import wilson
from detdiag.moe.table import flip_sentence, routing_table

RULES: Final[dict[str, str]] = {
    "capacity": "moe.capacity-drop",
    "tie": "moe.router-tie",
    "precision": "moe.router-precision",
    "selection": "moe.selection-at-equal-scores",
    "weights": "moe.weights-at-equal-scores",
    "order": "moe.expert-order",
    "inherited": "moe.inherited-flip",
    "unknown": "moe.inherited-flip",
}

NOISE_RATE: Final = 0.2
"""A change in more than this share of agreeing pairs is noise, not a cause."""


@dataclass(frozen=True, slots=True)
class _View:
    """The pairs, split by whether the outcome differs at the level that is looked at."""

    pairs: Sequence[Pair]
    differing: Sequence[Pair]
    agreeing: Sequence[Pair]


def routing_findings(observations: Iterable[Observation]) -> list[Finding]:
    """Findings of layer ``moe`` from the ``routing`` channel; empty where nothing records it."""
    pairs = routed_pairs(observations)
    if not pairs:
        return []
    for levels in (("bitwise", "token"), ("token",)):
        view = _View(
            pairs,
            [p for p in pairs if p.divergence in levels],
            [p for p in pairs if p.divergence not in levels],
        )
        found = _source_findings(view)
        if found:
            return found
    return [_symptom(pairs)]


def routing_series(observations: Iterable[Observation]) -> Mapping[str, Any] | None:
    """The report's ``routing`` table for the most telling pair of a recorded case, or None."""
    pairs = routed_pairs(observations)
    if not pairs:
        return None
    best = max(
        pairs,
        key=lambda p: (
            bool(p.routing.sources()) and p.divergence != "none",
            bool(p.routing.flips) and p.divergence != "none",
            p.divergence != "none",
        ),
    )
    last = last_shared_position(best.left, best.right, best.fork)
    table = routing_table(best.left.routing or (), best.right.routing or (), last_position=last)
    return {**table, "query": best.query, "pair": [best.left.id, best.right.id]}


def _source_findings(view: _View) -> list[Finding]:
    sources = _source_places(view)
    by_factors: dict[tuple[str, ...], list[tuple[Pair, Flip | None]]] = defaultdict(list)
    for pair in view.differing:
        by_factors[pair.factors].append((pair, _source_flip(pair, sources)))
    hits: dict[str, list[tuple[Pair, Flip]]] = defaultdict(list)
    explained: dict[str, set[str]] = defaultdict(set)
    named: list[set[str]] = []
    for factors in sorted(by_factors, key=lambda f: (len(f), f)):
        members = [(p, f) for p, f in by_factors[factors] if f is not None]
        # One differing pair without a source: something else moves the outcome as well.
        if len(members) < len(by_factors[factors]):
            continue
        known = any(smaller and smaller < set(factors) for smaller in named)
        named.append(set(factors))
        for pair, flip in members:
            rule = _rule(flip, factors)
            hits[rule].append((pair, flip))
            explained[rule].update(() if known else factors or (CONTROL_FACTOR,))
    ranked = sorted(hits, key=lambda rule: (-len(hits[rule]), rule))
    return [_source_finding(r, hits[r], tuple(sorted(explained[r])), view) for r in ranked]


def _rule(flip: Flip, factors: tuple[str, ...]) -> str:
    """Another choice at equal scores under identical conditions is a random draw."""
    if flip.kind == "selection" and not factors:
        return "moe.router-jitter"
    return RULES[flip.kind]


def _source_places(view: _View) -> set[tuple[str, Place]]:
    """Places per query that change at equal scores together with the outcome."""
    moved = {(p.query, f.place) for p in view.differing for f in p.routing.sources()}
    noise: Counter[tuple[str, Place]] = Counter()
    totals: Counter[str] = Counter()
    for pair in view.agreeing:
        totals[pair.query] += 1
        noise.update({(pair.query, f.place) for f in pair.routing.sources()})
    quiet = {key for key in moved if noise[key] <= NOISE_RATE * totals[key[0]]}
    # Rare changes at many places are noise too, although each single place looks quiet.
    noisy_queries = {
        query
        for query, total in totals.items()
        if sum(_source_flip(p, quiet) is not None for p in view.agreeing if p.query == query)
        > NOISE_RATE * total
    }
    return {key for key in quiet if key[0] not in noisy_queries}


def _source_flip(pair: Pair, sources: set[tuple[str, Place]]) -> Flip | None:
    """The first source in ``pair``; None too where the scores also moved without one, unless
    the source is a drop, which is far larger than any rounding."""
    flips = [f for f in pair.routing.sources() if (pair.query, f.place) in sources]
    if pair.routing.independent_drift() is not None:
        flips = [f for f in flips if f.kind == "capacity"]
    return flips[0] if flips else None


def _source_finding(
    rule: str, hits: Sequence[tuple[Pair, Flip]], explains: tuple[str, ...], view: _View
) -> Finding:
    pair, flip = min(hits, key=lambda hit: (hit[1].place, hit[0].left.id, hit[0].right.id))
    queries = {p.query for p, _ in hits}
    places = {(p.query, f.place) for p, f in hits}
    agreeing = [p for p in view.agreeing if p.query in queries]
    noisy = [p for p in agreeing if _source_flip(p, places) is not None]
    differing = [p for p in view.differing if p.query in queries]
    at_equal = all(f.at_equal_scores for _, f in hits)
    return Finding(
        layer="moe",
        rule=rule,
        outcome="failed",
        severity="high",
        summary=f"{flip_sentence(flip)} Pairs whose output differs: {len(hits)} of "
        f"{len(differing)} show it; pairs whose output agrees: {len(noisy)} of {len(agreeing)}.",
        evidence=(
            _share("differing pairs that route differently at equal scores", hits, differing),
            _share("agreeing pairs that route differently at equal scores", noisy, agreeing),
        ),
        remedy=REMEDIES.get(rule),
        locus=Locus(query=pair.query, token=flip.position, module=f"block {flip.block}"),
        mechanism=True,
        explains=explains,
        proven=at_equal and bool(agreeing) and not noisy,
        data={"pair": [pair.left.id, pair.right.id], "kind": flip.kind},
    )


def _share(metric: str, part: Sequence[Any], whole: Sequence[Any]) -> Evidence:
    k, n = len(part), len(whole)
    return Evidence(metric, k, n, "pairs", wilson(k, n))


def _symptom(pairs: Sequence[Pair]) -> Finding:
    differing = [p for p in pairs if p.divergence != "none"]
    agreeing = [p for p in pairs if p.divergence == "none"]
    if not differing:
        return _no_outcome(pairs)
    flipped = [p for p in differing if p.routing.flips]
    if not flipped:
        return _no_flip(differing)
    sourced = [p for p in flipped if p.routing.sources()]
    if sourced:
        return _not_associated(sourced, differing, agreeing)
    return _inherited(flipped, differing)


def _no_outcome(pairs: Sequence[Pair]) -> Finding:
    flipped = [p for p in pairs if p.routing.flips]
    evidence = (_share("pairs that route differently", flipped, pairs),)
    if not flipped:
        text = f"Routing and outputs agree in all {len(pairs)} pairs."
        return Finding("moe", "moe.routing-equal", "passed", text, evidence=evidence)
    text = (
        f"Routing changes in {len(flipped)} of {len(pairs)} pairs and no output differs: noise "
        "that the model absorbs."
    )
    return Finding("moe", "moe.healthy-noise", "passed", text, evidence=evidence)


def _no_flip(differing: Sequence[Pair]) -> Finding:
    complete = all(covers_fork(p) for p in differing)
    end = ": routing is not the cause." if complete else "; other positions cannot be judged."
    return Finding(
        "moe",
        "moe.routing-equal",
        "passed" if complete else "inconclusive",
        f"Experts, order and drops agree at every recorded place in {len(differing)} of "
        f"{len(differing)} pairs whose output differs{end}",
        evidence=(_share("differing pairs with equal routing", differing, differing),),
    )


def _not_associated(
    sourced: Sequence[Pair], differing: Sequence[Pair], agreeing: Sequence[Pair]
) -> Finding:
    flip = sourced[0].routing.sources()[0]
    noisy = [p for p in agreeing if p.routing.sources()]
    drift = sourced[0].routing.independent_drift()
    why = (
        "It does not go with the output"
        if drift is None
        else f"Scores moved without it in block {drift[0]} at position {drift[1]}"
    )
    return Finding(
        "moe",
        RULES[flip.kind],
        "inconclusive",
        f"{flip_sentence(flip)} {why}: {len(sourced)} of {len(differing)} differing pairs and "
        f"{len(noisy)} of {len(agreeing)} agreeing pairs show such a change, so routing is not "
        "named.",
        severity="low",
        evidence=(
            _share("differing pairs with a change at equal scores", sourced, differing),
            _share("agreeing pairs with a change at equal scores", noisy, agreeing),
        ),
        data={"contributor": True},
    )


def _inherited(flipped: Sequence[Pair], differing: Sequence[Pair]) -> Finding:
    known = all(f.kind == "inherited" for p in flipped for f in p.routing.flips)
    pair = flipped[0]
    flip = pair.routing.flips[0]
    start = ""
    if pair.routing.drifted:
        block, position = pair.routing.drifted[0]
        size = "far more than rounding" if _beyond_rounding(pair) else "rounding"
        start = f" Scores differ first in block {block} at position {position}, by {size}."
    return Finding(
        "moe",
        "moe.inherited-flip",
        "passed" if known else "inconclusive",
        f"{flip_sentence(flip)}{start} The router passed on a difference that it received or "
        "may have received; it is at most a contributor.",
        severity="low",
        evidence=(_share("differing pairs with a routing change", flipped, differing),),
        remedy=REMEDIES["moe.inherited-flip"],
        locus=Locus(pair.query, flip.position, f"block {flip.block}"),
        data={"contributor": True},
    )


def _beyond_rounding(pair: Pair) -> bool:
    """Is the first score difference larger than rounding can make it (noise or dropout)?"""
    place = pair.routing.drifted[0]
    left = by_place(pair.left.routing or ())[place]
    return not scored_alike(left, by_place(pair.right.routing or ())[place])
