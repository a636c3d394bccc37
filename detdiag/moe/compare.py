"""Two routing records of one query, place by place: what changed, and what it started from.

A place is one (block, position). The router input there depends on lower blocks at the same and
earlier positions, so a change counts as *first* when no expert choice changed in that cone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from detdiag.evidence.observation import Route
from detdiag.moe.ulps import (
    DTYPES_BY_WIDTH,
    narrowest,
    round_to,
    same_bits,
    ulp_distance,
)

FlipKind = Literal[
    "capacity",
    "tie",
    "precision",
    "selection",
    "weights",
    "order",
    "inherited",
    "unknown",
]
SOURCE_KINDS: Final = frozenset({"capacity", "tie", "precision", "selection", "weights", "order"})
"""Kinds that arise at the router itself; the others only pass a difference on."""

ROUNDING_ULPS: Final = 16
"""Scores further apart than this many steps of their own format are not rounding noise."""

_NOWHERE: Final = 1 << 62

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Flip:
    """One changed place. ``left``/``right`` are the two records; ``reason`` is a clause for a
    sentence. ``kind`` says where the change comes from."""

    block: int
    position: int
    kind: FlipKind
    left: Route
    right: Route
    reason: str

    @property
    def place(self) -> Place:
        return (self.block, self.position)

    @property
    def at_equal_scores(self) -> bool:
        """Were the scores of both runs recorded and equal there (up to a down-cast)?"""
        return score_agreement(self.left, self.right) in ("equal", "cast")


def by_place(routes: Sequence[Route], last_position: int | None = None) -> dict[Place, Route]:
    """Routes keyed by (block, position), cut after ``last_position`` (inclusive)."""
    return {
        (r.block, r.position): r
        for r in routes
        if last_position is None or r.position <= last_position
    }


@dataclass(frozen=True, slots=True)
class Comparison:
    """``flips`` are the first changes (none earlier in their cone); ``drifted`` the places whose
    scores differ by more than a down-cast."""

    flips: tuple[Flip, ...]
    drifted: tuple[Place, ...]

    def sources(self) -> tuple[Flip, ...]:
        return tuple(f for f in self.flips if f.kind in SOURCE_KINDS)

    def independent_drift(self) -> Place | None:
        """A place whose scores moved without a source flip upstream of it: proof that something
        outside the routers changed as well. None where there is none."""
        sources = [f.place for f in self.sources()]
        for block, position in self.drifted:
            if not any(b < block and p <= position for b, p in sources):
                return (block, position)
        return None


class _Cone:
    """Lowest changed position in the blocks below the current one (places come in order)."""

    def __init__(self) -> None:
        self.block = -1
        self.below = self.here = _NOWHERE

    def covers(self, place: Place) -> bool:
        if place[0] != self.block:
            self.block, self.below, self.here = place[0], min(self.below, self.here), _NOWHERE
        return self.below <= place[1]

    def add(self, place: Place) -> None:
        self.here = min(self.here, place[1])


def compare_routes(left: Mapping[Place, Route], right: Mapping[Place, Route]) -> Comparison:
    """Compare the places that both records hold."""
    flips: list[Flip] = []
    drifted: list[Place] = []
    moved_cone, drift_cone = _Cone(), _Cone()
    for place in sorted(left.keys() & right.keys()):
        a, b = left[place], right[place]
        moved_before, drifted_before = moved_cone.covers(place), drift_cone.covers(place)
        if _decided_otherwise(a, b):
            moved_cone.add(place)
            if not moved_before:
                kind, reason = _classify(a, b, drifted=drifted_before)
                flips.append(Flip(*place, kind, a, b, reason))
        if score_agreement(a, b) == "apart":
            drift_cone.add(place)
            drifted.append(place)
    return Comparison(tuple(flips), tuple(drifted))


def _decided_otherwise(a: Route, b: Route) -> bool:
    """Another choice, order or drop; other weights count only at bit-equal scores, because they
    follow the scores everywhere else."""
    if a.experts != b.experts or a.dropped != b.dropped:
        return True
    if a.weights is None or b.weights is None or score_agreement(a, b) != "equal":
        return False
    return not same_bits(a.weights, b.weights)


def _classify(a: Route, b: Route, *, drifted: bool) -> tuple[FlipKind, str]:
    agreement = score_agreement(a, b)
    if a.dropped != b.dropped or _is_subset(a, b):
        return _classify_drop(a, b, agreement)
    if agreement == "missing":
        return "unknown", "router scores were not recorded"
    if agreement == "apart":
        where = "an earlier block's scores differ already" if drifted else "the scores differ"
        return ("inherited" if drifted else "unknown"), where
    if agreement == "cast":
        return _classify_cast(a, b)
    return _classify_equal(a, b)


def _is_subset(a: Route, b: Route) -> bool:
    """One run lost a choice of the other: an expert was full and nothing replaced it."""
    return len(a.experts) != len(b.experts) and (
        set(a.experts) <= set(b.experts) or set(b.experts) <= set(a.experts)
    )


def score_agreement(a: Route, b: Route) -> Literal["equal", "cast", "apart", "missing"]:
    """How the two score vectors relate: equal bits, equal after rounding the wider one to the
    narrower format, or apart. ``missing`` where either is absent."""
    if a.scores is None or b.scores is None or len(a.scores) != len(b.scores):
        return "missing"
    if same_bits(a.scores, b.scores):
        return "equal"
    narrow, wide, dtype = _narrow_and_wide(a, b)
    if narrow is wide:
        return "apart"
    assert narrow.scores is not None and wide.scores is not None
    rounded = [round_to(v, dtype) for v in wide.scores]
    return "cast" if same_bits(rounded, narrow.scores) else "apart"


def _narrow_and_wide(a: Route, b: Route) -> tuple[Route, Route, str]:
    """The record with fewer significand bits, the other one, and the narrow format."""
    left = narrowest(a.scores or (), a.score_dtype)
    right = narrowest(b.scores or (), b.score_dtype)
    if left == right:
        return a, a, left
    if DTYPES_BY_WIDTH.index(left) < DTYPES_BY_WIDTH.index(right):
        return a, b, left
    return b, a, right


def _classify_drop(a: Route, b: Route, agreement: str) -> tuple[FlipKind, str]:
    if agreement in ("equal", "cast"):
        return "capacity", "the token is dropped in one run only, at bit-equal router scores"
    same_choice = not (a.experts and b.experts) or _is_subset(a, b) or a.experts == b.experts
    if agreement == "apart" and same_choice and _within_rounding(a, b):
        return (
            "capacity",
            "the token is dropped in one run only, with the same choice and scores that differ "
            "by rounding alone",
        )
    if agreement == "missing" and a.weights is not None and a.weights == b.weights:
        return "capacity", "the token is dropped in one run only, at equal expert weights"
    if agreement == "missing" and a.experts and a.experts == b.experts:
        return "capacity", "the token is dropped in one run only, with the same choice of experts"
    return "unknown", "the token is dropped in one run only and its scores differ or are missing"


def scored_alike(a: Route, b: Route) -> bool:
    """Both recorded, and equal or apart by no more than rounding can make them."""
    agreement = score_agreement(a, b)
    return agreement in ("equal", "cast") or (agreement == "apart" and _within_rounding(a, b))


def _within_rounding(a: Route, b: Route) -> bool:
    assert a.scores is not None and b.scores is not None
    dtype = _narrow_and_wide(a, b)[2]
    steps = (ulp_distance(x, y, dtype) for x, y in zip(a.scores, b.scores, strict=True))
    return all(s is not None and s <= ROUNDING_ULPS for s in steps)


def swapped(a: Route, b: Route) -> tuple[list[int], list[int]]:
    """Experts chosen in one run only: (left only, right only), in order of choice."""
    return (
        [e for e in a.experts if e not in b.experts],
        [e for e in b.experts if e not in a.experts],
    )


def _classify_cast(a: Route, b: Route) -> tuple[FlipKind, str]:
    narrow, wide, dtype = _narrow_and_wide(a, b)
    assert narrow.scores is not None and wide.scores is not None
    one, other = swapped(narrow, wide)
    involved = one + other or [x for x, y in zip(a.experts, b.experts, strict=False) if x != y]
    ties = {narrow.scores[e] for e in involved if 0 <= e < len(narrow.scores)}
    if len(ties) == 1:
        return (
            "precision",
            f"the scores of experts {_names(involved)} are distinct in the wider format and "
            f"equal after rounding to {dtype}",
        )
    return "unknown", "the scores agree after rounding, and the choice differs without a tie"


def _classify_equal(a: Route, b: Route) -> tuple[FlipKind, str]:
    assert a.scores is not None
    one, other = swapped(a, b)
    if a.experts == b.experts:
        return "weights", "the same experts at bit-equal scores get other weights"
    if not one and not other:
        return "order", "the same experts at bit-equal scores take other slots"
    involved = one + other
    if any(not 0 <= e < len(a.scores) for e in involved):
        return "unknown", "an expert id is outside the recorded scores"
    values = {a.scores[e] for e in involved}
    if len(values) == 1:
        return "tie", f"experts {_names(involved)} have exactly the same score"
    for dtype in ("float16", "bfloat16"):
        if len({round_to(v, dtype) for v in values}) == 1:
            return (
                "precision",
                f"experts {_names(involved)} differ in score and are equal after rounding "
                f"to {dtype}",
            )
    return "selection", "bit-equal scores without a tie led to other experts"


def _names(experts: Sequence[int]) -> str:
    return " and ".join(str(e) for e in experts)
