"""Idle against bursts: the unit is the burst, and a witness says that requests really ran
together on the server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from detdiag.evidence.finding import Evidence, Finding, Remedy
from detdiag.verdict.endpoint.arms import new_outcomes, trend_p, unit_permutation_p
from detdiag.verdict.endpoint.reach import Reach, Start, reach_of, start_of
from detdiag.verdict.endpoint.samples import Sample, by_group, largest_change_nat
from detdiag.verdict.residue import FAR_ABOVE_ROUNDING_NAT
from detdiag.verdict.stats import fisher_greater, wilson, zero_bound

WITNESS_RANK: Final = {"none": 0, "overlap": 1, "metrics": 2}
ENOUGH_UNITS: Final = 5
FULL: Final = 0.75
ENOUGH_REPLIES: Final = 16
"""Witnessed replies under load before "no difference" is worth saying."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """``fresh`` of ``loaded`` replies in bursts give an answer that none of ``idle`` gives.

    ``bursts`` of them were ``witnessed``; ``witness`` is the strongest kind that at least half of
    them have; ``p`` is the larger of burst permutation and Fisher, times the looks taken."""

    fresh: int
    loaded: int
    idle: int
    bursts: int
    bursts_hit: int
    witnessed: int
    witness: str
    most_running: int
    witnessed_replies: int
    p: float
    p_units: float
    p_replies: float
    trend: float | None
    change_nat: float | None
    filled: bool = False
    """Did one server visibly run (nearly) whole bursts?"""
    reach: Reach = Reach()
    """Of the replies in bursts with a witness."""
    start: Start | None = None


def load_result(samples: Sequence[Sample]) -> LoadResult | None:
    """Over groups whose idle arm repeats; None without bursts there."""
    steady = {
        g
        for g, members in by_group(s for s in samples if s.arm == "idle").items()
        if len({s.outcome for s in members}) == 1 and len(members) > 1
    }
    idle = [s for s in samples if s.arm == "idle" and s.group in steady]
    bursts = _comparable(samples, [s for s in samples if s.arm == "burst" and s.group in steady])
    if not bursts:
        return None
    used = {s.group for s in bursts}
    idle = [s for s in idle if s.group in used]
    fresh, loaded, controls = new_outcomes(idle, bursts)
    answers = {s.group: s.outcome for s in idle}
    hits = [s.outcome != answers[s.group] for s in bursts]
    units = {s.unit: s for s in bursts}
    looks = max((int(s.context("look") or 1) for s in bursts), default=1)
    p_units = unit_permutation_p([*idle, *bursts], "burst") if fresh else 1.0
    p_replies = fisher_greater(fresh, loaded, 0, controls) if fresh else 1.0
    seen = [str(u.context("witness") or "none") for u in units.values()]
    witnessed = [s for s in bursts if str(s.context("witness") or "none") != "none"]
    return LoadResult(
        fresh, loaded, controls, len(units),
        len({s.unit for s, hit in zip(bursts, hits, strict=True) if hit}),
        sum(w != "none" for w in seen), _strongest(seen),
        max((int(u.context("running") or 0) for u in units.values()), default=0),
        len(witnessed),
        min(1.0, looks * max(p_units, p_replies)), p_units, p_replies,
        trend_p([float(s.context("tokens_in_flight") or 0) for s in bursts], hits),
        largest_change_nat([*idle, *bursts]), _filled(units), reach_of(witnessed),
        start_of(idle, bursts),
    )  # fmt: skip


def _comparable(samples: Sequence[Sample], bursts: Sequence[Sample]) -> list[Sample]:
    """Replies in bursts on connections that were asked at idle too, or that one burst alone used:
    a connection that leads to another replica would come back in every burst and pass for load."""
    known = {s.connection for s in samples if s.arm == "idle"}
    used: dict[str, set[str]] = defaultdict(set)
    for one in bursts:
        used[one.connection].add(one.unit)
    return [s for s in bursts if s.connection in known or len(used[s.connection]) == 1]


def _filled(units: Mapping[str, Sample]) -> bool:
    """Did the server count at least three quarters of the burst at once in half of the bursts?"""
    full = 0
    for one in units.values():
        size = int(one.context("size") or 0)
        full += bool(size) and int(one.context("running") or 0) >= FULL * size
    return 2 * full >= len(units)


def _strongest(seen: Sequence[str]) -> str:
    """The strongest witness that at least half of the bursts have."""
    for kind in ("metrics", "overlap"):
        if 2 * sum(WITNESS_RANK[w] >= WITNESS_RANK[kind] for w in seen) >= len(seen):
            return kind
    return "none"


def load_evidence(result: LoadResult, p: float) -> tuple[Evidence, ...]:
    rows = [
        Evidence(
            "replies in bursts with an answer that no idle reply gives", result.fresh,
            result.loaded, "replies", wilson(result.fresh, result.loaded),
        ),
        Evidence("idle replies that differ", 0, result.idle, "replies", wilson(0, result.idle)),
        Evidence("bursts with such a reply", result.bursts_hit, result.bursts, "bursts"),
        Evidence("bursts with a witness", result.witnessed, result.bursts, "bursts"),
        Evidence("p (whole bursts relabelled)", float(f"{result.p_units:.3g}")),
        Evidence("p (Fisher, replies)", float(f"{result.p_replies:.3g}")),
        Evidence("p (larger of both, looks and Holm)", float(f"{p:.3g}")),
    ]  # fmt: skip
    if result.start is not None:
        rows.append(
            Evidence("tokens of the shortest context that moved", result.start.context_tokens)
        )
    if result.trend is not None:
        rows.append(Evidence("p (more with more tokens in flight)", float(f"{result.trend:.3g}")))
    return tuple(rows)


def witness_text(result: LoadResult) -> str:
    if result.witness == "metrics":
        return f"witness: the server counts up to {result.most_running} requests running at once"
    if result.witness == "overlap":
        return "witness: bursts finish faster than their requests one after the other"
    return "no witness that requests ran together"


def load_counts(result: LoadResult) -> str:
    return (
        f"{result.fresh} of {result.loaded} replies inside bursts leave the answer that all "
        f"{result.idle} idle ones give ({result.bursts_hit} of {result.bursts} bursts)"
    )


def load_cause(result: LoadResult, p: float, *, sole: bool) -> Finding | None:
    """The failed finding, where counts and witness carry it. A router that sends bursts elsewhere
    would look the same, unless one server shows whole bursts (or is the ``sole`` one); bits that
    move far beyond rounding need the server's own gauge."""
    far = result.change_nat is not None and result.change_nat > FAR_ABOVE_ROUNDING_NAT
    if not result.fresh or p > 0.01 or result.witness == "none":
        return None
    if far and result.witness != "metrics":
        return None
    size = "" if result.change_nat is None else f", by up to {result.change_nat:.3g} nat"
    size += "" if result.start is None else result.start.words()
    one_server = result.witness == "metrics" and (result.filled or sole)
    aside = (
        "" if one_server else "; a router that sends bursts to another replica would look the same"
    )
    return Finding(
        "batch", "batch.load-sensitive", "failed",
        f"{load_counts(result)}{size}; idle and bursts were interleaved; "
        f"{witness_text(result)}{aside}",
        "high", subject="concurrency", evidence=load_evidence(result, p), mechanism=True,
        explains=("concurrency", "in_flight_tokens", "batch_size", "neighbours"),
        proven=one_server,
        remedy=Remedy(
            "serve with batch-invariant kernels, or one request at a time where it must repeat",
            command="vLLM: VLLM_BATCH_INVARIANT=1; SGLang: --enable-deterministic-inference; "
            "llama.cpp: --parallel 1",
            cost="throughput; measure it on your load",
            verify="replies inside bursts equal the idle ones",
        ),
    )  # fmt: skip


def load_open(result: LoadResult, p: float) -> Finding:
    """What to say where load is neither blamed nor cleared, or where nothing differed."""
    evidence = load_evidence(result, p)
    if result.fresh:
        return Finding(
            "batch", "batch.load-sensitive", "inconclusive",
            f"{load_counts(result)} (p = {p:.2g}); {witness_text(result)}",
            "medium", evidence=evidence,
        )  # fmt: skip
    if result.witness == "none":
        return Finding(
            "batch", "batch.load-sensitive", "skipped",
            f"{result.loaded} replies inside bursts agree, but nothing shows that the server ran "
            "requests together, so load is not tested",
            evidence=evidence,
        )  # fmt: skip
    bound = zero_bound(result.witnessed_replies)
    enough = result.witnessed_replies >= ENOUGH_REPLIES and result.witnessed >= 3
    return Finding(
        "batch", "batch.load-sensitive", "passed" if enough else "inconclusive",
        f"0 of {result.loaded} replies inside {result.bursts} bursts leave the idle answer "
        f"(at most {100 * bound:.2g} % would, 95 %){result.reach.words()}; {witness_text(result)}",
        evidence=evidence,
        data={"cut_at_tokens": result.reach.answer_tokens} if result.reach.cut else {},
    )  # fmt: skip


def bursts_needed(result: LoadResult) -> int:
    """Bursts after which the share of bursts seen to differ would reach p 0.01: each differing
    burst halves p about once where as many idle blocks are run."""
    share = max(result.bursts_hit, 1) / max(result.bursts, 1)
    return max(ENOUGH_UNITS, ceil(8 / share))
