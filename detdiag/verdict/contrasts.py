"""Controls and contrasts: which condition, changed alone, changes the outcome?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import pandas as pd

from detdiag.verdict.outcome import STRENGTH, Kind, Level, compare
from detdiag.verdict.stats import ALPHA, fisher_greater, holm, permutation_p
from detdiag.verdict.table import UNRECORDED, Bundle, Table


@dataclass(frozen=True, slots=True)
class Control:
    """Pairs equal in every recorded condition: ``k`` of ``n`` pairs differ, ``runs`` in all.

    ``largest`` is the most observations of one query under this condition."""

    condition: tuple[tuple[str, str], ...]
    k: int
    n: int
    runs: int
    largest: int


@dataclass(frozen=True, slots=True)
class Contrast:
    """Pairs of conditions equal in all but one bundle: ``k`` of ``n`` give another outcome.

    ``mode``: the arms give other answers ("location"), one arm repeats and the other does not
    ("repeatability"), or answers away from a repeating baseline arm ("baseline").
    ``queries`` is (flipped, compared). ``p`` is exact or seeded permutation, or Fisher.
    """

    bundle: Bundle
    k: int
    n: int
    p: float
    mode: str
    arms: tuple[str, ...]
    control_k: int
    control_n: int
    queries: tuple[int, int]
    kind: Kind
    max_nat: float | None
    flipped_under: tuple[str, ...] = ()
    p_holm: float = 1.0
    smallest_arm: int = 0
    quiet_arms: tuple[str, ...] = ()
    noisy_arms: tuple[str, ...] = ()


def controls(table: Table, level: Level) -> list[Control]:
    """One control per condition, pooled over queries but never over conditions."""
    rows = _usable(table.frame, level)
    columns = [b.column for b in table.bundles]
    out = []
    for key, group in _grouped(rows, columns):
        k = n = largest = 0
        for _, same in group.groupby("query", sort=False):
            classes = list(same[level])
            pairs = len(classes) * (len(classes) - 1) // 2
            equal = sum(c * (c - 1) // 2 for c in Counter(classes).values())
            k, n = k + pairs - equal, n + pairs
            largest = max(largest, len(classes))
        condition = tuple((b.label, v) for b, v in zip(table.bundles, key, strict=True))
        out.append(Control(condition, k, n, len(group), largest))
    return out


def _usable(frame: pd.DataFrame, level: Level) -> pd.DataFrame:
    return frame[frame[level] >= 0]


def _grouped(
    rows: pd.DataFrame, columns: Sequence[str]
) -> Iterable[tuple[tuple[str, ...], pd.DataFrame]]:
    if not columns:
        yield (), rows
        return
    for key, group in rows.groupby(list(columns), sort=True):
        yield tuple(str(k) for k in (key if isinstance(key, tuple) else (key,))), group


def contrasts(table: Table, level: Level) -> list[Contrast]:
    """The contrast of every bundle that has matched pairs, with Holm over those that flip."""
    found = [c for b in table.bundles if (c := contrast(table, b, level)) is not None]
    overall = systematic_p(table, level)
    found = [_strengthened(c, overall) for c in found]
    flipping = [i for i, c in enumerate(found) if c.p < 1.0]
    for index, p in zip(flipping, holm([found[i].p for i in flipping]), strict=True):
        found[index] = replace(found[index], p_holm=p)
    return found


def systematic_p(table: Table, level: Level) -> float:
    """P that chance alone sorts the outcomes by condition as well as seen: outcomes of one query
    are exchanged over all of its conditions."""
    rows = _usable(table.frame, level)
    columns = [b.column for b in table.bundles]
    if not columns:
        return 1.0
    strata = []
    for _, same in rows.groupby("query", sort=False):
        cells = same.groupby(columns, sort=True).ngroup()
        strata.append((list(same[level]), [int(c) for c in cells]))
    return permutation_p(strata)


def _strengthened(found: Contrast, overall: float) -> Contrast:
    """Where no control differs and every flipping arm was run at least three times, what is left
    to doubt is only whether chance sorted the outcomes by condition at all."""
    if found.k and found.mode == "location" and not found.control_k and found.smallest_arm >= 3:
        return replace(found, p=min(found.p, overall))
    return found


def contrast(table: Table, bundle: Bundle, level: Level) -> Contrast | None:
    """Contrast one bundle in strata that share the query and every other bundle."""
    rows = _usable(table.frame, level)
    rows = rows[rows[bundle.column] != UNRECORDED]
    others = [b.column for b in table.bundles if b.column != bundle.column]
    strata = [
        (key, group)
        for key, group in _grouped(rows, ["query", *others])
        if group[bundle.column].nunique() > 1
    ]
    if not strata:
        return None
    located = _located(table, bundle, level, strata)
    candidates = [located]
    if located.k or located.control_k:
        candidates += [
            c
            for c in (
                _repeatability(located, bundle, level, strata),
                _baseline(located, bundle, level, strata),
            )
            if c is not None
        ]
    return located if located.p <= ALPHA else min(candidates, key=lambda c: c.p)


def _located(
    table: Table,
    bundle: Bundle,
    level: Level,
    strata: list[tuple[tuple[str, ...], pd.DataFrame]],
) -> Contrast:
    k = n = control_k = control_n = 0
    kind: Kind = "none"
    max_nat: float | None = None
    compared: set[str] = set()
    flipped: set[str] = set()
    under: set[str] = set()
    arms: Counter[str] = Counter()
    smallest = len(table.frame)
    permuted = []
    for key, group in strata:
        compared.add(key[0])
        arms.update(group[bundle.column])
        modal = {str(arm): _modal(rows, level) for arm, rows in group.groupby(bundle.column)}
        for left, right in combinations(sorted(modal), 2):
            n += 1
            (class_a, index_a), (class_b, index_b) = modal[left], modal[right]
            if class_a == class_b:
                continue
            k += 1
            flipped.add(key[0])
            under.add(" | ".join(key[1:]))
            sizes = group[bundle.column].value_counts()
            smallest = min(smallest, int(sizes[left]), int(sizes[right]))
            difference = compare(
                table.observations[index_a].output, table.observations[index_b].output
            )
            kind = _stronger(kind, difference.kind)
            max_nat = _larger(max_nat, difference.max_nat)
        for _, rows in group.groupby(bundle.column):
            counts = Counter(rows[level])
            pairs = len(rows) * (len(rows) - 1) // 2
            control_n += pairs
            control_k += pairs - sum(c * (c - 1) // 2 for c in counts.values())
        codes, _ = pd.factorize(group[bundle.column], sort=True)
        permuted.append((list(group[level]), [int(c) for c in codes]))
    p = permutation_p(permuted) if k else 1.0
    return Contrast(
        bundle, k, n, p, "location", tuple(sorted(arms)), control_k, control_n,
        (len(flipped), len(compared)), kind, max_nat, tuple(sorted(under)),
        smallest_arm=smallest,
    )  # fmt: skip


def _modal(rows: pd.DataFrame, level: Level) -> tuple[int, int]:
    """(most common class, an observation of that class); ties go to the smaller class."""
    counts = Counter(rows[level])
    best = min(counts, key=lambda c: (-counts[c], c))
    return int(best), int(rows[rows[level] == best]["observation"].iloc[0])


def _stronger(a: Kind, b: Kind | None) -> Kind:
    return a if b is None or STRENGTH[a] >= STRENGTH[b] else b


def _larger(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)


def _repeatability(
    located: Contrast,
    bundle: Bundle,
    level: Level,
    strata: list[tuple[tuple[str, ...], pd.DataFrame]],
) -> Contrast | None:
    """One arm's control repeats, the other's fails: the factor switches repeatability itself."""
    deviating: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    for _, group in strata:
        for arm, rows in group.groupby(bundle.column):
            if len(rows) >= 2:
                runs[str(arm)] += len(rows) - 1
                deviating[str(arm)] += len(rows) - max(Counter(rows[level]).values())
    quiet = tuple(sorted(a for a in runs if deviating[a] == 0))
    noisy = tuple(sorted(a for a in runs if deviating[a] > 0))
    if not quiet or not noisy:
        return None
    k, n_noisy = sum(deviating[a] for a in noisy), sum(runs[a] for a in noisy)
    n_quiet = sum(runs[a] for a in quiet)
    p = fisher_greater(k, n_noisy, 0, n_quiet)
    return replace(
        located, k=k, n=n_noisy, p=p, mode="repeatability", quiet_arms=quiet, noisy_arms=noisy,
        control_k=0, control_n=n_quiet,
    )  # fmt: skip


def _baseline(
    located: Contrast,
    bundle: Bundle,
    level: Level,
    strata: list[tuple[tuple[str, ...], pd.DataFrame]],
) -> Contrast | None:
    """Many arms of few runs: how many leave the answer of the arm that was repeated most?"""
    total: Counter[str] = Counter()
    for _, group in strata:
        total.update(str(a) for a in group[bundle.column])
    base = min(total, key=lambda a: (-total[a], a))
    away = others = kept = base_away = 0
    for _, group in strata:
        mine = group[group[bundle.column] == base]
        if len(mine) < 2:
            continue
        answer, _ = _modal(mine, level)
        rest = group[group[bundle.column] != base]
        away, others = away + int((rest[level] != answer).sum()), others + len(rest)
        base_away += int((mine[level] != answer).sum())
        kept += len(mine) - 1  # the run that gives the answer cannot leave it
    if not others or not away:
        return None
    p = fisher_greater(away, others, base_away, kept)
    return replace(
        located, k=away, n=others, p=p, mode="baseline", quiet_arms=(base,),
        control_k=base_away, control_n=kept,
    )  # fmt: skip


def unexplained(table: Table, level: Level, causes: Sequence[Bundle]) -> Counter[tuple[str, ...]]:
    """Sets of bundles that differ between conditions of one query with other repeated answers,
    where none of ``causes`` is among them: what only moves together cannot be named."""
    rows = _usable(table.frame, level)
    columns = [b.column for b in table.bundles]
    known = {b.column for b in causes}
    found: Counter[tuple[str, ...]] = Counter()
    if not columns:
        return found
    for _, same in rows.groupby("query", sort=False):
        cells = [(key, _modal(group, level)[0]) for key, group in _grouped(same, columns)]
        for (key_a, answer_a), (key_b, answer_b) in combinations(cells, 2):
            if answer_a == answer_b:
                continue
            apart = tuple(
                c for c, a, b in zip(columns, key_a, key_b, strict=True)
                if a != b
            )  # fmt: skip
            if apart and not known.intersection(apart):
                found[apart] += 1
    return found
