"""Recorded routing: faults planted into synthetic records must be named, noise must not."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from detdiag.evidence.observation import Observation, Output, Position, Route
from detdiag.moe.recorded import routing_findings, routing_series
from detdiag.moe.ulps import round_to

EXPERTS, TOP_K, BLOCKS, POSITIONS = 6, 2, 4, 5


def clean_routes(seed: int, dtype: str = "bfloat16") -> list[Route]:
    rng = random.Random(seed)
    routes = []
    for block in range(BLOCKS):
        for position in range(POSITIONS):
            scores = tuple(round_to(v, dtype) for v in rng.sample(_LADDER, EXPERTS))
            routes.append(route(block, position, scores, dtype))
    return routes


_LADDER = [0.01 * 1.35**i for i in range(12)]


def route(block: int, position: int, scores: tuple[float, ...], dtype: str = "bfloat16") -> Route:
    chosen = tuple(sorted(range(EXPERTS), key=lambda e: (-scores[e], e))[:TOP_K])
    total = sum(scores[e] for e in chosen)
    weights = tuple(scores[e] / total for e in chosen)
    return Route(block, position, chosen, weights, scores, dtype)


def change(
    routes: list[Route], place: tuple[int, int], edit: Callable[[Route], Route]
) -> list[Route]:
    """Edit one place and let every place downstream of it drift, as a real model does."""
    rng = random.Random(str(place))
    out = []
    for r in routes:
        if (r.block, r.position) == place:
            r = edit(r)
        elif r.block > place[0] and r.position >= place[1]:
            assert r.scores is not None
            drifted = tuple(
                round_to(s * (1 + rng.uniform(0.01, 0.02)), "bfloat16") for s in r.scores
            )
            r = route(r.block, r.position, drifted)
        out.append(r)
    return out


def observation(
    ident: str, routes: list[Route], text: str, query: str = "q", **factors: object
) -> Observation:
    tokens = tuple(ord(c) for c in text)
    return Observation(
        ident, query=query, output=Output(text, tokens), routing=tuple(routes), factors=factors
    )


def tie(routes: list[Route], place: tuple[int, int]) -> list[Route]:
    """Make ranks k and k+1 exactly equal at ``place``; the lower index is chosen."""

    def edit(r: Route) -> Route:
        assert r.scores is not None
        order = sorted(range(EXPERTS), key=lambda e: -r.scores[e])
        scores = list(r.scores)
        scores[order[TOP_K]] = scores[order[TOP_K - 1]]
        return route(r.block, r.position, tuple(scores))

    return [edit(r) if (r.block, r.position) == place else r for r in routes]


def other_of_tie(r: Route) -> Route:
    assert r.scores is not None
    rejected = [e for e in range(EXPERTS) if e not in r.experts]
    won = max(rejected, key=lambda e: r.scores[e])
    return replace(r, experts=(*r.experts[:-1], won))


def drop(r: Route) -> Route:
    return replace(r, dropped=True)


def test_capacity_by_batch_size_is_a_mechanism() -> None:
    base = clean_routes(1)
    full = change(base, (1, 3), drop)
    obs = [
        observation(
            f"b{b}r{i}",
            full if b == 8 else base,
            "other" if b == 8 else "plain",
            batch_size=b,
            repeat=i,
        )
        for b in (1, 8)
        for i in range(4)
    ]
    (finding,) = routing_findings(obs)
    assert (finding.rule, finding.outcome, finding.mechanism) == (
        "moe.capacity-drop",
        "failed",
        True,
    )
    assert finding.explains == ("batch_size",)
    assert finding.proven
    assert finding.locus is not None and finding.locus.module == "block 1"
    # 16 pairs cross the arms; 2 x C(4, 2) stay within one.
    assert [(e.value, e.n) for e in finding.evidence] == [(16, 16), (0, 12)]


def test_capacity_by_neighbours_with_expert_left_out() -> None:
    base = clean_routes(2)
    lost = change(base, (0, 2), lambda r: replace(r, experts=r.experts[:1]))
    obs = [
        observation(
            f"{n}{i}",
            lost if n == "b" else base,
            "xy" if n == "b" else "xz",
            neighbours=n,
            repeat=i,
        )
        for n in "ab"
        for i in range(3)
    ]
    (finding,) = routing_findings(obs)
    assert (finding.rule, finding.explains) == ("moe.capacity-drop", ("neighbours",))


def test_random_tie_under_identical_conditions_explains_the_control() -> None:
    base = tie(clean_routes(3), (2, 1))
    flipped = change(base, (2, 1), other_of_tie)
    obs = [
        observation(
            f"r{i}",
            flipped if i % 3 == 0 else base,
            "no" if i % 3 == 0 else "ok",
            batch_size=1,
            repeat=i,
        )
        for i in range(9)
    ]
    (finding,) = routing_findings(obs)
    assert (finding.rule, finding.explains, finding.proven) == ("moe.router-tie", ("repeat",), True)


def test_order_of_equal_experts() -> None:
    base = clean_routes(4)
    turned = change(base, (1, 0), lambda r: replace(r, experts=r.experts[::-1]))
    obs = [
        observation(
            f"b{b}r{i}", turned if b == 4 else base, "u" if b == 4 else "v", batch_size=b, repeat=i
        )
        for b in (1, 4)
        for i in range(3)
    ]
    (finding,) = routing_findings(obs)
    assert (finding.rule, finding.explains) == ("moe.expert-order", ("batch_size",))


def test_selection_after_down_cast_at_equal_recorded_scores() -> None:
    base = clean_routes(5, "float32")
    close = [replace(r) for r in base]
    index = next(i for i, r in enumerate(close) if (r.block, r.position) == (2, 2))
    scores = (0.3, 0.0922, 0.09238, 0.01, 0.02, 0.03)
    assert round_to(0.0922, "bfloat16") == round_to(0.09238, "bfloat16")
    close[index] = route(2, 2, scores, "float32")
    lower = [replace(r, experts=(0, 1)) if (r.block, r.position) == (2, 2) else r for r in close]
    obs = [
        observation(f"{d}{i}", lower if d == "a" else close, d, replica=d, repeat=i)
        for d in "ab"
        for i in range(3)
    ]
    (finding,) = routing_findings(obs)
    assert (finding.rule, finding.outcome) == ("moe.router-precision", "failed")


def noisy(routes: list[Route], rng: random.Random, rate: float = 0.3) -> list[Route]:
    return [replace(r, experts=r.experts[::-1]) if rng.random() < rate else r for r in routes]


def test_healthy_noise_without_any_output_change() -> None:
    rng = random.Random(0)
    base = clean_routes(6)
    obs = [
        observation(f"r{i}", noisy(base, rng), "same", batch_size=1, repeat=i) for i in range(10)
    ]
    (finding,) = routing_findings(obs)
    assert (finding.rule, finding.outcome, finding.mechanism) == (
        "moe.healthy-noise",
        "passed",
        False,
    )


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5])
def test_noise_in_both_arms_of_a_batch_effect_is_not_blamed(rate: float) -> None:
    rng = random.Random(1)
    base = clean_routes(7)
    obs = [
        observation(f"b{b}r{i}", noisy(base, rng, rate), f"text {b}", batch_size=b, repeat=i)
        for b in (1, 8)
        for i in range(8)
    ]
    assert not any(f.mechanism for f in routing_findings(obs))


def test_flip_behind_drifted_scores_is_inherited() -> None:
    base = clean_routes(8)

    def nudge(r: Route) -> Route:
        assert r.scores is not None
        return replace(r, scores=tuple(round_to(s * (1 + 2**-7), "bfloat16") for s in r.scores))

    moved = [nudge(r) if r.block < 2 else r for r in base]
    moved = [other_of_tie(nudge(r)) if (r.block, r.position) == (2, 0) else r for r in moved]
    obs = [
        observation(f"b{b}r{i}", moved if b == 8 else base, f"{b}", batch_size=b, repeat=i)
        for b in (1, 8)
        for i in range(4)
    ]
    (finding,) = routing_findings(obs)
    assert (finding.rule, finding.mechanism, finding.outcome) == (
        "moe.inherited-flip",
        False,
        "passed",
    )


def test_tie_beside_scores_that_moved_by_themselves_is_not_named() -> None:
    base = tie(clean_routes(9), (3, 4))
    moved = [
        replace(r, scores=tuple(s * 1.5 for s in r.scores or ())) if r.block == 0 else r
        for r in base
    ]
    moved = [other_of_tie(r) if (r.block, r.position) == (3, 4) else r for r in moved]
    obs = [
        observation(f"b{b}r{i}", moved if b == 8 else base, f"{b}", batch_size=b, repeat=i)
        for b in (1, 8)
        for i in range(4)
    ]
    assert not any(f.mechanism for f in routing_findings(obs))


def test_positions_after_the_fork_are_not_compared() -> None:
    base = clean_routes(10)
    other = clean_routes(110)
    late = [o if r.position > 1 else r for r, o in zip(base, other, strict=True)]
    late = [drop(r) if r.position > 1 else r for r in late]
    obs = [
        observation(
            f"b{b}r{i}",
            late if b == 8 else base,
            "abxxx" if b == 8 else "acxxx",
            batch_size=b,
            repeat=i,
        )
        for b in (1, 8)
        for i in range(4)
    ]
    (finding,) = routing_findings(obs)
    assert (finding.rule, finding.outcome, finding.mechanism) == (
        "moe.routing-equal",
        "passed",
        False,
    )


def test_a_second_cause_keeps_routing_from_explaining_its_factor() -> None:
    base = clean_routes(11)
    full = change(base, (0, 0), drop)
    obs = [
        observation(
            f"{b}{p}{i}", full if b == 8 else base, f"{b}{p}", batch_size=b, process=p, repeat=i
        )
        for b in (1, 8)
        for p in ("x", "y")
        for i in range(3)
    ]
    findings = [f for f in routing_findings(obs) if f.mechanism]
    assert [f.explains for f in findings] == [("batch_size",)]


def test_text_flip_by_a_drop_beside_bitwise_batch_noise() -> None:
    base = clean_routes(12)
    full = change(base, (1, 1), drop)

    def with_logprob(o: Observation, value: float) -> Observation:
        positions = (Position("a", 1, value),)
        return replace(o, output=replace(o.output, positions=positions))

    obs = [
        with_logprob(
            observation(
                f"b{b}r{i}", full if b == 8 else base, "t" if b < 8 else "s", batch_size=b, repeat=i
            ),
            -0.1 * b,
        )
        for b in (1, 2, 8)
        for i in range(3)
    ]
    assert [f.rule for f in routing_findings(obs) if f.mechanism] == ["moe.capacity-drop"]


def test_no_routing_no_finding() -> None:
    assert routing_findings([Observation("a"), Observation("b")]) == []


def test_series_has_flip_map_load_and_sentence() -> None:
    base = clean_routes(13)
    full = change(base, (1, 1), drop)
    obs = [observation("a", base, "x", batch_size=1), observation("b", full, "y", batch_size=8)]
    table = routing_series(obs)
    assert table is not None
    assert table["changed"][1][:2] == [0, 1]
    assert table["load"][1]["dropped_right"] == 1
    chosen = Counter(e for r in base if r.block == 0 for e in r.experts)
    assert table["load"][0]["left"] == [chosen[e] for e in range(EXPERTS)]
    assert "block 1 at position 1" in table["first_flip"]


def test_a_recorded_case_has_the_flip_map_in_its_report() -> None:
    """The table that a live routing trace shows, from evidence alone."""
    from detdiag.evidence.case import Case
    from detdiag.verdict import decide

    base = clean_routes(13)
    routes = {1: base, 8: change(base, (1, 1), drop)}
    obs = [
        observation(f"b{b}r{i}", routes[b], f"text {b}", batch_size=b, repeat=i)
        for b in (1, 8)
        for i in range(6)
    ]
    report = decide(Case(tuple(obs))).to_dict()
    assert report["verdict"]["layer"] == "moe"
    assert report["data"]["routing"]["changed"][1][:2] == [0, 1]
    bare = [replace(o, routing=None) for o in obs]
    assert "routing" not in decide(Case(tuple(bare))).to_dict()["data"]


def test_recorded_analysis_never_imports_torch() -> None:
    code = (
        "import sys, detdiag.moe.recorded; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'scipy', 'pandas')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
