"""Factor columns of a table as labels for the tests, and the verdict over all factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from detdiag.incidents.association import (
    ALPHA,
    MAX_RECORDS,
    MIN_GROUPS,
    MIN_REPEATS,
    Sample,
    Test,
    holm,
    midranks,
    permutation_test,
)
from detdiag.incidents.columns import ABSENT, NAMES
from detdiag.incidents.model import FactorTest
from detdiag.incidents.overlap import overlap_counts
from detdiag.incidents.table import Table
from detdiag.layers import FACTOR_LAYERS

FACTORS: Final = (*NAMES, "cached_tokens", "concurrency", "time")
ORDERED: Final = frozenset({"concurrency", "time"})
_BINS: Final = 4

Array = NDArray[Any]


def factor_values(table: Table) -> dict[str, Array]:
    """One float column a factor, NaN where not recorded: codes for names, 0 or 1 for a cached
    prompt, requests in flight for ``concurrency``, seconds for ``time``."""
    columns = table.columns
    found = {name: np.where(columns[name] == 0, np.nan, columns[name]) for name in NAMES}
    cached = columns["cached"]
    found["cached_tokens"] = np.where(cached == ABSENT, np.nan, cached > 0)
    server = columns["replica"].astype(np.int64) * (len(table.words["model_reported"]) + 1)
    found["concurrency"] = overlap_counts(
        columns["start_s"], columns["end_s"], server + columns["model_reported"]
    )
    found["time"] = columns["start_s"]
    return found


def sample_of(members: Array, answers: Array, values: Mapping[str, Array]) -> Sample:
    """Up to ``MAX_RECORDS`` records of one request. The choice looks at answers only (half of the
    room for the most frequent one), so a shuffle of labels stays a fair comparison."""
    chosen = members[_thinned(answers[members])]
    labels: dict[str, Array] = {}
    for name, column in values.items():
        column = column[chosen]
        known = np.isfinite(column)
        out = np.full(len(chosen), -1.0)
        out[known] = midranks(column[known]) if name in ORDERED else column[known]
        labels[name] = out
        if name in ORDERED:
            labels[f"{name} bin"] = _binned(out)
    return Sample(answers[chosen], labels, ORDERED)


def _thinned(answers: Array) -> Array:
    if len(answers) <= MAX_RECORDS:
        return np.arange(len(answers))
    kinds, codes, counts = np.unique(answers, return_inverse=True, return_counts=True)
    usual = np.flatnonzero(codes == counts.argmax())
    other = np.flatnonzero(codes != counts.argmax())
    room = max(MAX_RECORDS // 2, MAX_RECORDS - len(usual))
    other = _spread(other, room)
    return np.sort(np.concatenate([other, _spread(usual, MAX_RECORDS - len(other))]))


def _spread(index: Array, count: int) -> Array:
    if len(index) <= count:
        return index
    return index[np.linspace(0, len(index) - 1, count).astype(np.int64)]


def _binned(ranks: Array) -> Array:
    """Quarters of an ordered factor: strata in which another factor can vary."""
    known = ranks >= 0
    out = np.full(len(ranks), -1.0)
    size = max(1, int(np.count_nonzero(known)))
    out[known] = np.minimum(_BINS - 1, ranks[known] * _BINS // size)
    return out


def judge(samples: Sequence[Sample], seed: int) -> list[FactorTest]:
    """Test every factor, adjust by Holm, fold names that move together, and hold associated
    factors equal one against the other."""
    rng = np.random.default_rng(seed)
    aliases = _aliases(samples)
    tests: dict[str, Test] = {}
    for name in FACTORS:
        if name not in aliases:
            tests[name] = permutation_test(samples, name, rng)
    adjusted = dict(zip(tests, holm([t.p for t in tests.values()]), strict=True))
    significant = [n for n in tests if (p := adjusted[n]) is not None and p <= ALPHA]
    led = _separated(samples, significant, rng)
    out = []
    for name, test in tests.items():
        recorded = any(np.any(s.labels[name] >= 0) for s in samples)
        outcome, note = _outcome(test, adjusted[name], led.get(name), recorded, len(samples))
        same = tuple(other for other, kept in aliases.items() if kept == name)
        out.append(
            FactorTest(
                factor=name,
                layer=FACTOR_LAYERS[name],
                groups=test.groups,
                records=test.records,
                p=test.p,
                p_holm=adjusted[name],
                outcome=outcome,
                note=note,
                same_as=same,
            )
        )
    return out


Outcome = Literal["associated", "not seen", "confounded", "too little", "not recorded"]


def _outcome(
    test: Test, adjusted: float | None, led: str | None, recorded: bool, groups: int
) -> tuple[Outcome, str]:
    if not groups:
        return "too little", "no request got another answer: there is nothing to test"
    if not recorded:
        return "not recorded", "no record carries it: it cannot be tested"
    if adjusted is None:
        return "too little", (
            f"{test.groups} of {groups} requests with another answer have {MIN_REPEATS} records "
            f"and vary in it; {MIN_GROUPS} are needed before a p-value"
        )
    if adjusted > ALPHA:
        return "not seen", "answers do not go with it beyond chance"
    if led is not None:
        return "confounded", led
    return "associated", "answers go with it, whatever the other recorded conditions are"


def _aliases(samples: Sequence[Sample]) -> dict[str, str]:
    """Names that are in bijection over all sampled records, mapped to the one that is kept."""
    out: dict[str, str] = {}
    order = ("replica", "provider", "system_fingerprint", "model_reported")
    stacked = {n: np.concatenate([s.labels[n] for s in samples] or [np.zeros(0)]) for n in order}
    for place, name in enumerate(order):
        for other in order[place + 1 :]:
            if name in out or other in out:
                continue
            pairs = set(zip(stacked[name].tolist(), stacked[other].tolist(), strict=True))
            if 1 < len(pairs) == len({p[0] for p in pairs}) == len({p[1] for p in pairs}):
                out[other] = name
    return out


def _separated(
    samples: Sequence[Sample], names: Sequence[str], rng: np.random.Generator
) -> dict[str, str]:
    """Why an associated factor may only follow another one; nothing for those that stand alone."""
    out: dict[str, str] = {}
    for place, a in enumerate(names):
        for b in names[place + 1 :]:
            a_given_b = permutation_test(samples, a, rng, given=_stratum(b)).p
            b_given_a = permutation_test(samples, b, rng, given=_stratum(a)).p
            a_stays = a_given_b is not None and a_given_b <= ALPHA
            b_stays = b_given_a is not None and b_given_a <= ALPHA
            if a_stays and b_stays:
                continue
            if a_stays:
                out.setdefault(b, f"the association is gone where {a} is equal")
            elif b_stays:
                out.setdefault(a, f"the association is gone where {b} is equal")
            else:
                out.setdefault(a, f"it moves together with {b}: the log cannot tell them apart")
                out.setdefault(b, f"it moves together with {a}: the log cannot tell them apart")
    return out


def _stratum(name: str) -> str:
    return f"{name} bin" if name in ORDERED else name
