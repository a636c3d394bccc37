"""Equal logits, another token? Exact ties, the rule that picks, and who draws random numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.finding import Evidence, Finding, Locus, Remedy
from detdiag.evidence.record import Event
from detdiag.layers import Layer
from detdiag.probes import rng
from detdiag.probes._compare import bit_equal
from detdiag.probes.interface import ProbeContext
from detdiag.probes.margins import margin_logits
from detdiag.probes.runs import Reference, bench, reference, user_call
from detdiag.targets.generated import Generated

NEAR_ULP = 8
"""Width of the window from which the expected number of exact ties is read off."""


class DecodeProbe:
    """What ``generate`` does with logits that are given; sampling itself belongs to ``config``."""

    layer: Layer = "decode"

    def run(self, context: ProbeContext) -> Iterator[Event]:
        began = time.monotonic()
        if not context.target.prompts:
            yield ProbeStatus("decode", "skipped", "no prompt to run")
            return
        yield from _ties(context)
        kwargs = user_call(context)
        if context.target.samples(**kwargs):
            reason = "the call samples, so a token need not follow from its logits (see config)"
            yield ProbeStatus("decode", "skipped", reason, time.monotonic() - began)
            return
        left: list[str] = []
        for index, prompt in enumerate(context.target.prompts):
            steps = 3 if prompt.id in bench(context).references else 4
            cost = steps * bench(context).clock.s_per_step * context.plan.max_new_tokens
            if index and context.remaining_s() < cost:
                left.append(f"prompt {prompt.id}")
                continue
            yield from _sampler(context, reference(context, prompt), kwargs)
        state = "out_of_budget" if left else "done"
        reason = "left untested: " + ", ".join(left) if left else ""
        yield ProbeStatus("decode", state, reason, time.monotonic() - began)  # type: ignore[arg-type]


def _ties(context: ProbeContext) -> Iterator[Event]:
    """Exact ties at the top, beside the number to expect on this dtype's grid."""
    ulps: list[float] = []
    first: Locus | None = None
    for query, runs in bench(context).base.items():
        for position, gap in enumerate(margin_logits(runs[0].logits)[1]):
            ulps.append(gap)
            if gap == 0 and first is None:
                first = Locus(query=query.split(":")[0], token=position)
    if not ulps:
        return
    ties = sum(gap == 0 for gap in ulps)
    expected = sum(gap <= NEAR_ULP for gap in ulps) / (NEAR_ULP + 1)
    yield Finding(
        layer="decode",
        rule="decode.exact-tie",
        outcome="passed",
        severity="low" if ties else "info",
        summary=(
            f"{ties} of {len(ulps)} positions tie exactly at the top "
            f"(about {expected:.1f} expected from the near ties around them)"
            + ("; which one is taken depends on the sampler's rule" if ties else "")
        ),
        evidence=(
            Evidence("exact ties at the top", ties, len(ulps), "positions"),
            Evidence("expected exact ties", round(expected, 3), len(ulps), "positions"),
        ),
        locus=first,
    )


def _sampler(context: ProbeContext, ref: Reference, kwargs: dict[str, Any]) -> Iterator[Event]:
    """Two greedy calls: is each token the arg-max of its own scores, and does anything draw?"""
    target = context.target
    row = [ref.prompt_ids]
    tokens = len(ref.continuation)
    before = rng.global_states()
    target.forward([ref.prompt_ids])
    drawn_by_forward = _moved(before)
    before = rng.global_states()
    one = target.generate(row, max_new_tokens=tokens, **kwargs)[0]
    drawn = _moved(before) - drawn_by_forward
    two = target.generate(row, max_new_tokens=tokens, **kwargs)[0]
    beams = getattr(target.effective_generation(**kwargs), "num_beams", 1) or 1
    if beams == 1:
        yield from _argmax(ref, one)
    fork = next(
        (i for i, (a, b) in enumerate(zip(one.token_ids, two.token_ids, strict=False)) if a != b),
        None,
    )
    equal = fork is not None and bit_equal(one.step_logits[: fork + 1], two.step_logits[: fork + 1])
    if fork is not None and equal:
        yield _draws(ref, sorted(drawn), fork, proven=bool(drawn))
    elif drawn:
        yield _draws(ref, sorted(drawn), None, proven=False)


def _moved(before: dict[str, Any]) -> set[str]:
    now = rng.global_states()
    return {k for k, v in now.items() if before.get(k) != v}


def _argmax(ref: Reference, made: Generated) -> Iterator[Finding]:
    """Compare each token with the arg-max of the processed scores, and tell ties apart."""
    scores = made.step_scores
    if scores is None or len(scores) != len(made.token_ids):
        return
    below = [i for i, t in enumerate(made.token_ids) if scores[i, t] < scores[i].max()]
    ties = [i for i in range(len(scores)) if _top_count(scores[i]) > 1]
    rule = _tie_rule(scores, made.token_ids, ties)
    n = len(made.token_ids)
    if not below:
        yield Finding(
            layer="decode",
            rule="decode.not-argmax",
            outcome="passed",
            summary=f"all {n} tokens are the arg-max of their own scores{rule}",
            evidence=(Evidence("tokens below their own arg-max", 0, n, "tokens"),),
        )
        return
    yield Finding(
        layer="decode",
        rule="decode.not-argmax",
        outcome="failed",
        severity="high",
        summary=(
            f"{len(below)} of {n} tokens of a greedy call are not the arg-max of their own "
            "processed scores"
        ),
        evidence=(Evidence("tokens below their own arg-max", len(below), n, "tokens"),),
        remedy=Remedy("find what replaces the token after scoring (custom generate, stopping)"),
        locus=Locus(query=ref.prompt.id, token=below[0]),
        mechanism=True,
        explains=("repeat", "sampler"),
    )


def _top_count(scores: Tensor) -> int:
    return int((scores == scores.max()).sum())


def _tie_rule(scores: Tensor, tokens: tuple[int, ...], ties: list[int]) -> str:
    """Words on which of the tied tokens was taken."""
    if not ties:
        return ""
    lowest = sum(tokens[i] == int((scores[i] == scores[i].max()).nonzero()[0]) for i in ties)
    topk = sum(tokens[i] == int(scores[i].topk(1).indices[0]) for i in ties)
    return (
        f"; at {len(ties)} exact ties the lowest id was taken {lowest} times, "
        f"top-k's first {topk} times"
    )


def _draws(ref: Reference, generators: list[str], fork: int | None, *, proven: bool) -> Finding:
    names = ", ".join(generators) or "no generator that can be watched"
    what = f"a greedy call moves {names}, a plain forward does not"
    if fork is not None:
        what = f"two greedy calls take other tokens at bit-equal logits; {names} moved in the call"
    return Finding(
        layer="decode",
        rule="decode.sampler-consumes-rng",
        outcome="inconclusive" if fork is None else "failed",
        severity="low" if fork is None else "high",
        summary=what,
        evidence=(Evidence("generators that moved", len(generators), None, "generators"),),
        remedy=Remedy("use a decoding path that draws nothing when greedy"),
        locus=Locus(query=ref.prompt.id, token=fork),
        mechanism=fork is not None,
        explains=() if fork is None else ("repeat", "sampler", "rng_scope"),
        proven=proven,
    )
