"""Controls and contrasts: which condition, changed alone, changes the outcome?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

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


@dataclass(frozen=True, slots=True)
class Row:
    """One observation as the counting sees it: its outcome class and its place in the table."""

    outcome: int
    index: int


Arms = dict[str, list[Row]]


def controls(table: Table, level: Level) -> list[Control]:
    """One control per condition, pooled over queries but never over conditions."""
    columns = [b.column for b in table.bundles]
    cells: dict[tuple[str, ...], dict[tuple[str, str], list[int]]] = {}
    for key, row in _rows(table, level, columns):
        query, channels, *condition = key
        cell = cells.setdefault(tuple(condition), {})
        cell.setdefault((query, channels), []).append(row.outcome)
    out = []
    for values, groups in sorted(cells.items()):
        k = n = 0
        by_query: Counter[str] = Counter()
        for (query, _), classes in groups.items():
            pairs = _pairs(len(classes))
            k, n = k + pairs - sum(_pairs(c) for c in Counter(classes).values()), n + pairs
            by_query[query] += len(classes)
        named = tuple((b.label, v) for b, v in zip(table.bundles, values, strict=True))
        out.append(Control(named, k, n, by_query.total(), max(by_query.values())))
    return out


def _pairs(n: int) -> int:
    return n * (n - 1) // 2


def _rows(
    table: Table, level: Level, columns: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], Row]]:
    """Observations with a comparable outcome, keyed by query, recorded channels and ``columns``.

    Only observations that carry the same channels share a class scale: what one of them lacks
    cannot be equal or different.
    """
    frame = table.frame
    names = ["query", f"{level}_channels", *columns]
    keys = zip(*(frame[c].astype(str).tolist() for c in names), strict=True)
    outcomes, places = frame[level].tolist(), frame["observation"].tolist()
    for key, outcome, place in zip(keys, outcomes, places, strict=True):
        if outcome >= 0:
            yield key, Row(int(outcome), int(place))


def _strata(table: Table, bundle: Bundle, level: Level) -> list[tuple[tuple[str, ...], Arms]]:
    """Strata equal in query, channels and every other bundle, with at least two arms each."""
    others = [b.column for b in table.bundles if b.column != bundle.column]
    found: dict[tuple[str, ...], Arms] = {}
    for key, row in _rows(table, level, [bundle.column, *others]):
        query, channels, arm, *rest = key
        if arm != UNRECORDED:
            stratum = found.setdefault((query, channels, *rest), {})
            stratum.setdefault(arm, []).append(row)
    return [(key, arms) for key, arms in sorted(found.items()) if len(arms) > 1]


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
    columns = [b.column for b in table.bundles]
    if not columns:
        return 1.0
    groups: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
    cells: dict[tuple[str, ...], int] = {}
    for key, row in _rows(table, level, columns):
        classes, arms = groups.setdefault((key[0], key[1]), ([], []))
        classes.append(row.outcome)
        arms.append(cells.setdefault(key, len(cells)))
    return permutation_p(groups.values())


def _strengthened(found: Contrast, overall: float) -> Contrast:
    """Where no control differs and every flipping arm was run at least three times, what is left
    to doubt is only whether chance sorted the outcomes by condition at all."""
    if found.k and found.mode == "location" and not found.control_k and found.smallest_arm >= 3:
        return replace(found, p=min(found.p, overall))
    return found


def contrast(table: Table, bundle: Bundle, level: Level) -> Contrast | None:
    """Contrast one bundle in strata that share the query and every other bundle."""
    strata = _strata(table, bundle, level)
    if not strata:
        return None
    located = _located(table, bundle, strata)
    candidates = [located]
    if located.k or located.control_k:
        switched, away = _repeatability(located, strata), _baseline(located, strata)
        candidates += [c for c in (switched, away) if c is not None]
    return located if located.p <= ALPHA else min(candidates, key=lambda c: c.p)


def _located(
    table: Table, bundle: Bundle, strata: Sequence[tuple[tuple[str, ...], Arms]]
) -> Contrast:
    k = n = control_k = control_n = 0
    kind: Kind = "none"
    max_nat: float | None = None
    flipped: set[str] = set()
    under: set[str] = set()
    names: set[str] = set()
    smallest = len(table.frame)
    for key, arms in strata:
        names.update(arms)
        modal = {arm: _modal(rows) for arm, rows in arms.items()}
        for left, right in combinations(sorted(modal), 2):
            n += 1
            if modal[left].outcome == modal[right].outcome:
                continue
            k += 1
            flipped.add(key[0])
            under.add(" | ".join(key[2:]))
            smallest = min(smallest, len(arms[left]), len(arms[right]))
            if k <= MAX_COMPARED:
                a, b = (table.observations[modal[arm].index].output for arm in (left, right))
                difference = compare(a, b)
                kind = _stronger(kind, difference.kind)
                max_nat = _larger(max_nat, difference.max_nat)
        for rows in arms.values():
            pairs = _pairs(len(rows))
            control_n += pairs
            control_k += pairs - sum(_pairs(c) for c in _counts(rows).values())
    p = permutation_p(_labelled(arms) for _, arms in strata) if k else 1.0
    return Contrast(
        bundle, k, n, p, "location", tuple(sorted(names)), control_k, control_n,
        (len(flipped), len({key[0] for key, _ in strata})), kind, max_nat, tuple(sorted(under)),
        smallest_arm=smallest,
    )  # fmt: skip


MAX_COMPARED = 500
"""Flipping pairs whose kind and size are looked up; the rest only count."""


def _labelled(arms: Arms) -> tuple[list[int], list[int]]:
    """(outcome classes, arm numbers) of one stratum."""
    classes: list[int] = []
    labels: list[int] = []
    for number, arm in enumerate(sorted(arms)):
        classes += [row.outcome for row in arms[arm]]
        labels += [number] * len(arms[arm])
    return classes, labels


def _counts(rows: Sequence[Row]) -> Counter[int]:
    return Counter(row.outcome for row in rows)


def _modal(rows: Sequence[Row]) -> Row:
    """The most common outcome (ties go to the smaller class) with an observation that has it."""
    counts = _counts(rows)
    best = min(counts, key=lambda c: (-counts[c], c))
    return next(row for row in rows if row.outcome == best)


def _stronger(a: Kind, b: Kind | None) -> Kind:
    return a if b is None or STRENGTH[a] >= STRENGTH[b] else b


def _larger(a: float | None, b: float | None) -> float | None:
    return b if a is None else a if b is None else max(a, b)


def _repeatability(
    located: Contrast, strata: Sequence[tuple[tuple[str, ...], Arms]]
) -> Contrast | None:
    """One arm's control repeats, the other's fails: the factor switches repeatability itself."""
    deviating: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    for _, arms in strata:
        for arm, rows in arms.items():
            if len(rows) >= 2:
                runs[arm] += len(rows) - 1
                deviating[arm] += len(rows) - max(_counts(rows).values())
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


def _baseline(located: Contrast, strata: Sequence[tuple[tuple[str, ...], Arms]]) -> Contrast | None:
    """Many arms of few runs: how many leave the answer of the arm that was repeated most?"""
    total: Counter[str] = Counter()
    for _, arms in strata:
        total.update({arm: len(rows) for arm, rows in arms.items()})
    base = min(total, key=lambda a: (-total[a], a))
    away = others = kept = base_away = 0
    for _, arms in strata:
        mine = arms.get(base, [])
        if len(mine) < 2:
            continue
        answer = _modal(mine).outcome
        rest = [row for arm, rows in arms.items() if arm != base for row in rows]
        away, others = away + sum(r.outcome != answer for r in rest), others + len(rest)
        base_away += sum(row.outcome != answer for row in mine)
        kept += len(mine) - 1  # the run that gives the answer cannot leave it
    if not others or not away:
        return None
    p = fisher_greater(away, others, base_away, kept)
    return replace(
        located, k=away, n=others, p=p, mode="baseline", quiet_arms=(base,),
        control_k=base_away, control_n=kept,
    )  # fmt: skip


MAX_CELLS = 60
"""Conditions of one query that are compared pair by pair when looking for confoundings."""


def unexplained(table: Table, level: Level, causes: Sequence[Bundle]) -> Counter[tuple[str, ...]]:
    """Sets of bundles that differ between conditions of one query with other repeated answers,
    where none of ``causes`` is among them: what only moves together cannot be named."""
    columns = [b.column for b in table.bundles]
    known = {b.column for b in causes}
    found: Counter[tuple[str, ...]] = Counter()
    if not columns:
        return found
    groups: dict[tuple[str, str], dict[tuple[str, ...], list[Row]]] = {}
    for key, row in _rows(table, level, columns):
        cells = groups.setdefault((key[0], key[1]), {})
        cells.setdefault(key[2:], []).append(row)
    for cells in groups.values():
        answers = [(key, _modal(rows).outcome) for key, rows in sorted(cells.items())[:MAX_CELLS]]
        for (key_a, answer_a), (key_b, answer_b) in combinations(answers, 2):
            if answer_a == answer_b:
                continue
            apart = tuple(c for c, a, b in zip(columns, key_a, key_b, strict=True) if a != b)
            if apart and not known.intersection(apart):
                found[apart] += 1
    return found
