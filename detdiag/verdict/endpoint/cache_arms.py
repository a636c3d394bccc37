"""Cold against warm prefix cache: in each salt one cold call and its warm repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from detdiag.evidence.finding import Evidence, Finding, Remedy
from detdiag.verdict.endpoint.arms import association_p
from detdiag.verdict.endpoint.samples import Sample, by_group, largest_change_nat
from detdiag.verdict.stats import wilson


@dataclass(frozen=True, slots=True)
class CacheResult:
    """``odd`` of ``salts`` have a cold reply unlike all of their equal warm ones. ``cold`` says
    whether the cold calls were cold: True by the server's own count or a lever that it is known
    to have, False where cached tokens were counted, None where nothing tells."""

    odd: int
    salts: int
    warm_apart: int
    p: float
    cold: bool | None
    lever: str
    change_nat: float | None


def cache_result(samples: Sequence[Sample]) -> CacheResult | None:
    """None where no cold call was made."""
    mine = [replace(s, group=f"{s.group}|{s.salt}") for s in samples if s.arm in ("cold", "warm")]
    groups = [g for g in by_group(mine).values() if {s.arm for s in g} == {"cold", "warm"}]
    if not groups:
        return None
    odd = apart = 0
    for members in groups:
        warm = {s.outcome for s in members if s.arm == "warm"}
        cold = {s.outcome for s in members if s.arm == "cold"}
        apart += len(warm) > 1
        odd += len(warm) == 1 and not cold & warm
    flat = [s for g in groups for s in g]
    counted = [s.cached for s in flat if s.arm == "cold" and s.cached is not None]
    warm_counted = [s.cached for s in flat if s.arm == "warm" and s.cached is not None]
    lever = str(flat[0].context("lever") or "")
    cold_known: bool | None = True if flat[0].context("lever_known") else None
    if counted and any(warm_counted):
        cold_known = not any(counted)
    return CacheResult(
        odd, len(groups), apart, association_p(flat, lambda s: s.arm), cold_known, lever,
        largest_change_nat(flat),
    )  # fmt: skip


def bursts_miss(samples: Sequence[Sample]) -> bool:
    """Does every new answer in bursts equal one that the cold calls of the same question gave?
    Then other requests in the burst only emptied the cache."""
    idle = {(s.group, s.outcome) for s in samples if s.arm == "idle"}
    cold = {(s.group, s.outcome) for s in samples if s.arm == "cold"}
    asked = {group for group, _ in cold}
    fresh = [
        (s.group, s.outcome)
        for s in samples
        if s.arm == "burst" and s.group in asked and (s.group, s.outcome) not in idle
    ]
    return bool(fresh) and all(key in cold for key in fresh)


def cache_finding(result: CacheResult, p: float) -> Finding:
    """Failed where cold calls are the odd ones (adjusted ``p`` up to 0.01), else what was seen."""
    evidence = (
        Evidence(
            "cold reply unlike its warm repeats", result.odd, result.salts, "cold starts",
            wilson(result.odd, result.salts), (result.lever,),
        ),
        Evidence("warm repeats that differ", result.warm_apart, result.salts, "cold starts"),
        Evidence("p (cold and warm exchanged in each start, Holm)", float(f"{p:.3g}")),
    )  # fmt: skip
    counted = f"{result.odd} of {result.salts} cold starts ({result.lever})"
    if result.odd and not result.warm_apart and p <= 0.01:
        size = "" if result.change_nat is None else f", by up to {result.change_nat:.3g} nat"
        return Finding(
            "batch", "batch.prefix-reuse", "failed",
            f"the first reply after a cold prefix cache differs from its warm repeats in {counted}"
            f"{size}, and the warm repeats agree",
            "high", subject="cached_tokens", evidence=evidence, mechanism=True,
            explains=("cached_tokens", "prefix_cache"), proven=result.cold is True,
            remedy=Remedy(
                "turn prefix reuse off, or make the cached path bit-equal to the cold one",
                command="vLLM: --no-enable-prefix-caching; SGLang: --disable-radix-cache; "
                "llama.cpp: cache_prompt false",
                cost="prompts are computed anew on every call",
                verify="cold and warm replies agree in every start",
            ),
        )  # fmt: skip
    if result.cold is False or result.odd or result.warm_apart:
        why = (
            "the server counted cached tokens in the cold calls too"
            if result.cold is False
            else f"{counted} differ, too few to tell"
        )
        return Finding("batch", "batch.prefix-reuse", "inconclusive", why, evidence=evidence)
    agree = f"cold and warm replies agree in {result.salts} of {result.salts} starts"
    if result.cold is None:
        return Finding(
            "batch", "batch.prefix-reuse", "skipped",
            f"{agree} ({result.lever}), but nothing shows that the cold ones were cold, so the "
            "prefix cache is not tested",
            evidence=evidence,
        )  # fmt: skip
    return Finding(
        "batch", "batch.prefix-reuse", "passed", f"{agree} ({result.lever})", evidence=evidence
    )
