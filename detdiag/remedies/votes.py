"""Majority votes: how many, what error is left, and when voting is no use.

With a modal share s (the probability of the most frequent answer) and N independent calls, the
majority is not the modal answer with probability at most P(X <= N/2), X ~ Binomial(N, s). At most,
because the other answers are counted as if they were one and the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

from detdiag.errors import DetdiagError

MOST_VOTES: Final = 999
"""Beyond this many calls a vote is no remedy."""


def vote_error(modal_share: float, votes: int) -> float:
    """Upper bound on the probability that ``votes`` independent calls have no majority for the
    modal answer: the exact binomial P(X <= votes / 2)."""
    if not 0.0 <= modal_share <= 1.0:
        raise DetdiagError(f"modal share {modal_share!r}: expected a number from 0 to 1")
    if votes < 1:
        raise DetdiagError(f"votes {votes!r}: expected at least 1")
    if modal_share in (0.0, 1.0):
        return 1.0 - modal_share
    log_s, log_rest = math.log(modal_share), math.log1p(-modal_share)
    whole = math.lgamma(votes + 1)
    return min(
        1.0,
        math.fsum(
            math.exp(
                whole
                - math.lgamma(k + 1)
                - math.lgamma(votes - k + 1)
                + k * log_s
                + (votes - k) * log_rest
            )
            for k in range(votes // 2 + 1)
        ),
    )


def votes_needed(modal_share: float, target_error: float, *, runs: int | None = None) -> int:
    """Smallest odd number of votes whose error (:func:`vote_error`) is at most ``target_error``.

    ``runs``: the number of runs that ``modal_share`` was measured on; the lower end of its 95 %
    Wilson interval is taken then, as a share seen in few runs may be luck. Raises
    :class:`DetdiagError` where the share does not exceed one half, or more than
    :data:`MOST_VOTES` calls would be needed.
    """
    if not 0.0 < target_error < 1.0:
        raise DetdiagError(f"target error {target_error!r}: expected a number between 0 and 1")
    share = modal_share if runs is None else _lower(modal_share, runs)
    if share <= 0.5:
        measured = "" if runs is None else f" (lower end of {modal_share:.3g} in {runs} runs)"
        raise DetdiagError(
            f"no number of votes helps at a modal share of {share:.3g}{measured}",
            tip="voting needs a share above one half; fix the cause, or cache the answer",
        )
    low, high = 0, 1
    while vote_error(share, 2 * high - 1) > target_error:
        low, high = high, 2 * high
        if 2 * low - 1 >= MOST_VOTES:
            raise DetdiagError(
                f"more than {MOST_VOTES} votes would be needed at a modal share of {share:.3g}",
                tip="too close to one half for voting; fix the cause, or cache the answer",
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if vote_error(share, 2 * middle - 1) <= target_error else (middle, high)
        )
    if 2 * high - 1 > MOST_VOTES:
        raise DetdiagError(
            f"{2 * high - 1} votes would be needed at a modal share of {share:.3g}",
            tip="too close to one half for voting; fix the cause, or cache the answer",
        )
    return 2 * high - 1


def _lower(share: float, runs: int) -> float:
    from detdiag.verdict.stats import wilson

    ends = wilson(round(share * runs), runs)
    if ends is None:
        raise DetdiagError(f"runs {runs!r}: expected at least 1")
    return ends[0]


@dataclass(frozen=True, slots=True)
class Vote:
    """``answer`` is the first answer of the winning class; ``decided`` says that it has more than
    half of all planned votes. ``counts`` are the sizes of the classes, largest first."""

    answer: Any
    decided: bool
    counts: tuple[int, ...]
    calls: int


def majority_vote(
    call: Callable[[], Any],
    votes: int,
    *,
    key: Callable[[Any], Hashable] = lambda answer: answer,
    early: bool = True,
) -> Vote:
    """Ask ``votes`` times and take the most frequent answer (the earlier one at a tie).

    ``key`` maps an answer to what counts as equal, for example a parsed number. ``early`` stops
    as soon as one class has a majority that the remaining votes cannot change. The arithmetic of
    :func:`votes_needed` holds for independent calls: send them apart, not in one burst.
    """
    if votes < 1:
        raise DetdiagError(f"votes {votes!r}: expected at least 1")
    counts: Counter[Hashable] = Counter()
    first: dict[Hashable, Any] = {}
    for _ in range(votes):
        answer = call()
        name = key(answer)
        first.setdefault(name, answer)
        counts[name] += 1
        if early and counts[name] > votes // 2:
            break
    order = {name: i for i, name in enumerate(first)}
    best = min(counts, key=lambda name: (-counts[name], order[name]))
    return Vote(
        first[best],
        counts[best] > votes // 2,
        tuple(sorted(counts.values(), reverse=True)),
        counts.total(),
    )
