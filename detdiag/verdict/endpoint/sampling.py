"""Gate 2: does something draw? Proofs from single replies first, then the knob contrast."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations

from detdiag.evidence.finding import Evidence, Finding, Locus, Remedy
from detdiag.evidence.observation import Observation, Output
from detdiag.verdict.endpoint.numerics import near_tie_nat
from detdiag.verdict.endpoint.samples import context, read_samples
from detdiag.verdict.endpoint.temperature import (
    Choice,
    Effective,
    choices,
    effective_temperature,
    expected_draws,
)
from detdiag.verdict.mechanisms import ArgmaxCount, ForkCount
from detdiag.verdict.outcome import first_fork, own_key, vector
from detdiag.verdict.stats import permutation_p

MOST_TEXTS = 30
ENOUGH_BELOW = 2
"""Tokens below their own arg-max that prove a draw."""
SMALL_TEMPERATURE = 0.01
"""The lowest temperature that vLLM samples at (lower ones, above its greedy threshold, are raised
to it)."""
KNOB_RULE = "config.sampling-knobs"
_PIN = Remedy(
    "make the request greedy on the server's own terms: temperature 0 reaches the engine, no "
    "server-side default or gateway replaces it",
    verify="every chosen token is the arg-max of its own alternatives",
)


def draw_finding(
    found: Sequence[Choice], count: ArgmaxCount, forks: ForkCount, *, varied: bool
) -> Finding | None:
    """``config.sampling-observed`` from two replies with equal log-probabilities and another
    token below the best, or from tokens below their arg-max that another reply with the same
    prefix does not choose (``varied``, see :func:`choice_varies`)."""
    drawn = [s for s in forks.same if s.gap_nat > 0.0]
    if not drawn and (count.below < ENOUGH_BELOW or not varied):
        return None
    told = effective_temperature(found)
    parts = []
    if count.below:
        parts.append(
            f"{count.below} of {count.tokens} chosen tokens are not the arg-max of their own "
            "alternatives"
        )
    if drawn:
        first = drawn[0]
        parts.append(
            f"{len(drawn)} pairs of replies have bit-equal log-probabilities up to and at the "
            f"token where they part (first: {first.query}, token {first.fork}, "
            f"{first.gap_nat:.3g} nat apart)"
        )
    temperature = _shown(told)
    where = count.where or Locus(query=drawn[0].query, token=drawn[0].fork)
    return Finding(
        layer="config",
        rule="config.sampling-observed",
        outcome="failed",
        severity="high",
        kind="sampling_still_on",
        subject="temperature",
        summary=f"something samples: {' and '.join(parts)}{temperature}",
        evidence=(
            Evidence("tokens below their own arg-max", count.below, count.tokens, "tokens"),
            Evidence("forks at bit-equal log-probabilities", len(drawn), unit="pairs"),
            Evidence("effective temperature", told.estimate, ci95=told.interval),
        ),
        locus=where,
        remedy=_PIN,
        mechanism=True,
        explains=("*",),
        proven=True,
    )


def choice_varies(observations: Sequence[Observation]) -> bool:
    """Do two replies part where one of them chose far below its own best? A penalty, bias or
    grammar on the server moves the choice too, but always to the same token."""
    by_query: dict[str, dict[object, Observation]] = defaultdict(dict)
    for one in observations:
        if one.output.positions:
            by_query[str(one.query)].setdefault(one.output.text, one)
    for members in by_query.values():
        firsts = list(members.values())[:MOST_TEXTS]
        for a, b in combinations(firsts, 2):
            fork = first_fork(a.output, b.output)
            if fork is not None and any(_far_below(o.output, fork) for o in (a, b)):
                return True
    return False


def _far_below(output: Output, at: int) -> bool:
    """Is the token at ``at`` further below the best than rounding could have put it?"""
    if not output.positions or at >= len(output.positions):
        return False
    position = output.positions[at]
    values, own = vector(position) or {}, own_key(position)
    if own not in values or len(values) < 2:
        return False
    return max(values.values()) - values[own] > near_tie_nat(position)


def moved_finding(count: ArgmaxCount) -> Finding | None:
    """A note where choices below the arg-max repeat: something moves them, nothing draws."""
    if count.below < ENOUGH_BELOW:
        return None
    return Finding(
        "config", "config.choice-moved", "inconclusive",
        f"{count.below} of {count.tokens} chosen tokens are not the arg-max of their own "
        "alternatives, and every repeat chooses the same: a penalty, a bias or a grammar on the "
        "server moves the choice (its generation_config may hold a repetition_penalty), or a "
        "seeded draw",
        "low",
        evidence=(Evidence("tokens below their own arg-max", count.below, count.tokens, "tokens"),),
        locus=count.where,
    )  # fmt: skip


def _shown(told: Effective) -> str:
    if told.estimate is None or told.interval is None:
        return ""
    low, high = told.interval
    return f"; effective temperature {told.estimate:.2g} [{low:.2g}-{high:.2g}]"


def tie_finding(found: Sequence[Choice], forks: ForkCount) -> Finding | None:
    """``decode.exact-tie`` from replies that part at two tokens with one log-probability. A
    temperature just above zero looks the same unless near ties would have shown it."""
    ties = [s for s in forks.same if s.gap_nat == 0.0]
    if not ties:
        return None
    expected = expected_draws(found, SMALL_TEMPERATURE)
    excluded = expected >= 5.0
    aside = (
        f"; a temperature of {SMALL_TEMPERATURE} is excluded (it would have drawn {expected:.0f} "
        "tokens below their arg-max, none was)"
        if excluded
        else f"; a temperature just above zero ({SMALL_TEMPERATURE}) would look the same here"
    )
    first = ties[0]
    return Finding(
        layer="decode",
        rule="decode.exact-tie",
        outcome="failed",
        severity="high",
        subject="tie_break",
        summary=(
            f"{len(ties)} pairs of replies have bit-equal log-probabilities up to and at the token "
            f"where they part, and the two tokens tie to the last bit (first: {first.query}, token "
            f"{first.fork}): the choice among equal values is not fixed{aside}"
        ),
        evidence=(
            Evidence("forks at an exact tie", len(ties), len(forks.same) + forks.moved, "forks"),
        ),
        locus=Locus(query=first.query, token=first.fork),
        remedy=Remedy(
            "break ties by token id in the sampler, or compute the last layer in fp32, where "
            "exact ties are rare; check that temperature is exactly 0",
            verify="replies with equal log-probabilities choose equal tokens",
        ),
        mechanism=True,
        explains=("*",),
        proven=excluded,
    )


def greedy_finding(told: Effective) -> Finding | None:
    """Passed where the choices exclude a temperature that would matter."""
    if told.below or told.upper is None or told.tokens < 20:
        return None
    return Finding(
        "config", "config.sampling-observed", "passed",
        f"all {told.tokens} chosen tokens are the arg-max of their own alternatives; that leaves "
        f"room for a temperature below {told.upper:.2g} only",
        evidence=(
            Evidence("tokens below their own arg-max", 0, told.tokens, "tokens"),
            Evidence("highest temperature still allowed (95 %)", told.upper),
        ),
    )  # fmt: skip


def knob_finding(observations: Sequence[Observation]) -> Finding | None:
    """The contrast without log-probabilities: does narrowing the draw to one token make the
    text repeat? Arms are ``as-sent``, ``narrow`` and ``seed``; None where they were not run."""
    arms: dict[str, list[tuple[str, int]]] = defaultdict(list)
    read = True
    for one in read_samples([o for o in observations if context(o).get("phase") == "knob"]):
        arms[str(one.context("knob"))].append((one.group, one.outcome))
        read = read and one.context("read") is not False
    wide, narrow = arms.get("as-sent", []), arms.get("narrow", [])
    if len(wide) < 5 or len(narrow) < 5:
        return None
    apart_wide, apart_narrow = _apart(wide), _apart(narrow)
    p = _spread_p(wide, narrow)
    evidence = (
        Evidence("pairs apart as sent", *apart_wide, "pairs"),
        Evidence("pairs apart with the draw narrowed to one token", *apart_narrow, "pairs"),
        Evidence("p (arms exchanged)", float(f"{p:.3g}")),
    )
    text = (
        f"as sent {apart_wide[0]} of {apart_wide[1]} pairs of replies differ, with top_p 1e-6 "
        f"{apart_narrow[0]} of {apart_narrow[1]}"
    )
    if apart_narrow[0] == 0 and apart_wide[0] and p <= 0.01:
        return Finding(
            "config", KNOB_RULE, "failed",
            f"something samples: {text} (a random choice among exact ties would look the same)",
            "high",
            kind="sampling_still_on", subject="temperature", evidence=evidence, remedy=_PIN,
            mechanism=True, explains=("*",),
        )  # fmt: skip
    if apart_narrow[0] and not read:
        return Finding(
            "config", KNOB_RULE, "inconclusive",
            f"the server takes a top_p of 5, so it may not read it at all: {text}",
            evidence=evidence,
        )  # fmt: skip
    if apart_narrow[0]:
        return Finding(
            "config", KNOB_RULE, "passed",
            f"narrowing the draw to one token does not make the text repeat: {text}",
            evidence=evidence,
        )  # fmt: skip
    return Finding("config", KNOB_RULE, "inconclusive", text, evidence=evidence)


def _apart(rows: Sequence[tuple[str, int]]) -> tuple[int, int]:
    k = n = 0
    sizes = Counter(group for group, _ in rows)
    for group, size in sizes.items():
        counts = Counter(o for g, o in rows if g == group)
        pairs = size * (size - 1) // 2
        k, n = k + pairs - sum(c * (c - 1) // 2 for c in counts.values()), n + pairs
    return k, n


def _spread_p(wide: Sequence[tuple[str, int]], narrow: Sequence[tuple[str, int]]) -> float:
    """P that the wide arm holds so many replies away from the narrow arm's answer by chance."""
    answer = {g: Counter(o for h, o in narrow if h == g).most_common(1)[0][0] for g, _ in narrow}
    strata = []
    for group in sorted(answer):
        rows = [(o != answer[group], 0) for g, o in wide if g == group]
        rows += [(o != answer[group], 1) for g, o in narrow if g == group]
        strata.append(([int(away) for away, _ in rows], [arm for _, arm in rows]))
    return permutation_p(strata)


def effective(observations: Sequence[Observation]) -> tuple[list[Choice], Effective]:
    found = choices(observations)
    return found, effective_temperature(found)
