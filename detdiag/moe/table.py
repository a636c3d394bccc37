"""The report's ``routing`` table and the one sentence about the first flip; no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from detdiag.evidence.observation import Route
from detdiag.moe.compare import Flip, by_place, compare_routes, swapped
from detdiag.moe.ulps import narrowest, ulp_distance


def flip_sentence(flip: Flip) -> str:
    """One sentence: where, which experts, and why it is (or is not) the router's own doing."""
    where = f"In block {flip.block} at position {flip.position}"
    if flip.left.dropped != flip.right.dropped:
        return f"{where} {flip.reason}."
    lost, won = swapped(flip.left, flip.right)
    if lost or won:
        change = f"experts {_ids(lost)} and {_ids(won)} change places"
    else:
        change = f"the choice {list(flip.left.experts)} becomes {list(flip.right.experts)}"
    return f"{where} {change}: {flip.reason}."


def _ids(experts: Sequence[int]) -> str:
    return "/".join(map(str, experts)) or "none"


def margin_at_k(route: Route) -> tuple[float, int | None] | None:
    """Worst chosen score minus best rejected score, and the same in ULPs of the score format;
    None without scores or rejected experts. Negative where something else than the score chose
    (a bias, a group limit, an overflow)."""
    if route.scores is None or not route.experts:
        return None
    chosen = [route.scores[e] for e in route.experts if 0 <= e < len(route.scores)]
    rejected = [s for e, s in enumerate(route.scores) if e not in route.experts]
    if not chosen or not rejected:
        return None
    low, high = min(chosen), max(rejected)
    return low - high, ulp_distance(low, high, narrowest(route.scores, route.score_dtype))


def routing_table(
    left: Sequence[Route],
    right: Sequence[Route],
    *,
    tokens: Sequence[str] | None = None,
    last_position: int | None = None,
    modules: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Flip map, margins, load and drops of two records over the places that both hold.

    ``changed`` is blocks x positions: experts of ``left`` that ``right`` did not choose (-1
    where a place is missing); ``load`` counts tokens per expert in each record.
    """
    a, b = by_place(left, last_position), by_place(right, last_position)
    blocks = sorted({block for block, _ in a.keys() | b.keys()})
    positions = sorted({position for _, position in a.keys() | b.keys()})
    changed = [[_changed(a.get((k, p)), b.get((k, p))) for p in positions] for k in blocks]
    flips = compare_routes(a, b).flips
    table: dict[str, Any] = {
        "blocks": [(modules or {}).get(k, k) for k in blocks],
        "tokens": list(tokens) if tokens is not None else [str(p) for p in positions],
        "positions": positions,
        "changed": changed,
        "flip_rate": [_rate(row) for row in changed],
        "margins": [m for place in sorted(a) if (m := _margin(a[place], b.get(place)))],
        "load": [_load(k, a, b) for k in blocks],
        "first_flip": flip_sentence(flips[0]) if flips else None,
    }
    return table


def _changed(a: Route | None, b: Route | None) -> int:
    if a is None or b is None:
        return -1
    return max(len(swapped(a, b)[0]), len(swapped(a, b)[1]), int(a.dropped != b.dropped))


def _rate(row: Sequence[int]) -> float | None:
    seen = [c for c in row if c >= 0]
    return sum(c > 0 for c in seen) / len(seen) if seen else None


def _margin(a: Route, b: Route | None) -> dict[str, Any] | None:
    margin = margin_at_k(a)
    if margin is None:
        return None
    return {
        "block": a.block,
        "position": a.position,
        "margin": margin[0],
        "margin_ulp": margin[1],
        "changed": _changed(a, b) > 0,
    }


def _load(
    block: int, a: Mapping[tuple[int, int], Route], b: Mapping[tuple[int, int], Route]
) -> dict[str, Any]:
    sides = [[r for (k, _), r in side.items() if k == block] for side in (a, b)]
    counts = [Counter(e for r in side for e in r.experts) for side in sides]
    width = [len(r.scores) for side in sides for r in side if r.scores is not None]
    experts = max([*width, *(e + 1 for c in counts for e in c)], default=0)
    return {
        "block": block,
        "left": [counts[0][e] for e in range(experts)],
        "right": [counts[1][e] for e in range(experts)],
        "dropped_left": sum(r.dropped for r in sides[0]),
        "dropped_right": sum(r.dropped for r in sides[1]),
    }
