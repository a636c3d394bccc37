"""Independent comparisons for the bound: each call of the model is used in one of them.

With C conditions a *cycle* takes 2 C calls of every condition for each prompt and makes C^2
comparisons: one inside each condition, two between each two conditions. Their average is the
agreement of two runs that fall under any condition with equal chance.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from detdiag.score.sample import Run, Sample

Call = tuple[str, Mapping[Hashable, int]]
"""Burst and the outputs that one prompt got in it."""


@dataclass(frozen=True, slots=True)
class Units:
    """``values`` in [0, 1] in the order made; ``prompts`` that take part; ``merged`` when calls
    serve several prompts, so that one unit is the mean over prompts. ``disagree`` counts units
    below 1."""

    values: tuple[float, ...]
    prompts: int
    conditions: int
    merged: bool
    skipped: tuple[str, ...] = ()

    @property
    def tally(self) -> Counter[float]:
        return Counter(self.values)

    @property
    def disagree(self) -> int:
        return sum(value < 1.0 for value in self.values)


def units_of(sample: Sample) -> Units:
    """Cut the runs into cycles; prompts that lack a condition or a whole cycle are skipped."""
    conditions = sample.conditions
    calls = _calls(sample.runs, sample.queries, conditions)
    need = 2 * len(conditions)
    used = [
        query
        for query in sample.queries
        if all(len(calls.get((query, c), ())) >= need for c in conditions)
    ]
    skipped = tuple(query for query in sample.queries if query not in used)
    merged = _shared(calls)
    if not used or not conditions:
        return Units((), 0, len(conditions), merged, skipped)
    cycles = min(len(calls[query, c]) // need for query in used for c in conditions)
    values: list[float] = []
    for cycle in range(cycles):
        rows = [_comparisons(calls, query, conditions, cycle * need) for query in used]
        if merged:
            values += [sum(slot) / len(slot) for slot in zip(*rows, strict=True)]
        else:
            values += [value for row in rows for value in row]
    return Units(tuple(values), len(used), len(conditions), merged, skipped)


def units_per_cycle(prompts: int, conditions: int, merged: bool) -> int:
    return conditions**2 * (1 if merged else prompts)


def _calls(
    runs: Sequence[Run], queries: Sequence[str], conditions: Sequence[str]
) -> dict[tuple[str, str], list[Call]]:
    """Calls of every prompt under every condition, in order. Where calls serve several prompts
    and rounds are numbered, only rounds that every prompt has: a failed request must not shift
    one prompt against the others."""
    grouped: dict[tuple[str, str], dict[str, Counter[Hashable]]] = defaultdict(dict)
    rounds: dict[tuple[str, str], dict[str, int | None]] = defaultdict(dict)
    for run in runs:
        key = (run.query, run.condition)
        grouped[key].setdefault(run.burst, Counter())[run.output] += 1
        rounds[key][run.burst] = run.round
    calls: dict[tuple[str, str], list[Call]] = {k: list(c.items()) for k, c in grouped.items()}
    if not _shared(calls) or any(run.round is None for run in runs):
        return calls
    for condition in conditions:
        having = [set(rounds[q, condition].values()) for q in queries if rounds[q, condition]]
        common = set.intersection(*having) if having else set()
        for query in queries:
            found = calls.get((query, condition), [])
            numbers = rounds[query, condition]
            calls[query, condition] = [call for call in found if numbers[call[0]] in common]
    return calls


def _shared(calls: Mapping[tuple[str, str], Sequence[Call]]) -> bool:
    """True if one call answered more than one prompt."""
    owner: dict[str, str] = {}
    for (query, _), found in calls.items():
        for burst, _outputs in found:
            if owner.setdefault(burst, query) != query:
                return True
    return False


def _comparisons(
    calls: Mapping[tuple[str, str], Sequence[Call]],
    query: str,
    conditions: Sequence[str],
    start: int,
) -> list[float]:
    left = {c: iter(calls[query, c][start : start + 2 * len(conditions)]) for c in conditions}
    out: list[float] = []
    for i, a in enumerate(conditions):
        out.append(_equal_share(next(left[a]), next(left[a])))
        for b in conditions[i + 1 :]:
            out += [_equal_share(next(left[a]), next(left[b])) for _ in range(2)]
    return out


def _equal_share(one: Call, other: Call) -> float:
    """Share of equal outputs among the pairs (one row of each call)."""
    pairs = sum(one[1].values()) * sum(other[1].values())
    return sum(n * other[1].get(k, 0) for k, n in one[1].items()) / pairs
