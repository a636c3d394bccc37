"""Everything that counting can say about the observations, before anything is attributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from detdiag.evidence.observation import Observation
from detdiag.verdict.contrasts import Contrast, Control, contrasts, controls, unexplained
from detdiag.verdict.outcome import STRENGTH, Kind, Level, compare
from detdiag.verdict.table import LABELS, Bundle, Table, build_table


@dataclass(frozen=True, slots=True)
class Analysis:
    """Counts at one level ("bits", or "output" where the bits never repeat but the text does)."""

    table: Table
    level: Level
    divergence: Kind
    controls: tuple[Control, ...]
    contrasts: tuple[Contrast, ...]
    pooled: tuple[str, ...] = ()
    """Label bundles shown inert inside both arms of another and therefore pooled."""
    jitter: tuple[Control, ...] = field(default=())
    """Controls that fail at the bit level although the output level repeats."""

    @property
    def control_k(self) -> int:
        return sum(c.k for c in self.controls)

    @property
    def control_n(self) -> int:
        return sum(c.n for c in self.controls)

    @property
    def always_restless(self) -> bool:
        """Identical runs differ under every condition: no condition is where answers differ."""
        tested = [c for c in self.controls if c.n]
        return bool(tested) and all(c.k for c in tested)

    @property
    def largest(self) -> int:
        """Most observations of one query under one condition."""
        return max((c.largest for c in self.controls), default=0)

    def confounded(self, causes: Sequence[Bundle]) -> list[tuple[tuple[Bundle, ...], int]]:
        """Sets of bundles that only change together with the outcome, smallest set first."""
        found = unexplained(self.table, self.level, causes)
        minimal = [s for s in found if not any(set(o) < set(s) for o in found)]
        return [
            (tuple(self.table.bundle(c) for c in s), found[s])
            for s in sorted(minimal, key=lambda s: (len(s), -found[s], s))
        ]


def divergence(table: Table) -> Kind:
    """Strongest difference between any two observations of one query."""
    strongest: Kind = "none"
    for _, rows in table.frame[table.frame["bits"] >= 0].groupby("query", sort=False):
        firsts = list(rows.drop_duplicates(["bits", "bits_channels"])["observation"])[:60]
        for i, j in combinations(firsts, 2):
            kind = compare(table.observations[i].output, table.observations[j].output).kind
            if kind is not None and STRENGTH[kind] > STRENGTH[strongest]:
                strongest = kind
            if strongest == "text":
                return strongest
    return strongest


def analyse(
    observations: Sequence[Observation], factor_layers: Mapping[str, str] | None = None
) -> Analysis:
    """Count controls and contrasts at the finest level whose controls repeat."""
    table = build_table(observations, factor_layers)
    kind = divergence(table)
    bits = _at(table, "bits", kind)
    if kind in ("token", "text"):
        output = _at(table, "output", kind)
        failing = [c for c in bits.controls if c.k]
        if not failing and not any(c.k for c in bits.contrasts) and _sees_more(output, bits):
            return output  # what differs lies between observations with other channels
        if not failing:
            return bits
        if output.control_k == 0 and 2 * len(failing) > len([c for c in bits.controls if c.n]):
            return _with_jitter(output, failing)
    return bits


def _sees_more(output: Analysis, bits: Analysis) -> bool:
    """Does the output level compare anything that the bit level, split by channels, did not?"""
    return (
        output.control_k > 0
        or any(c.k for c in output.contrasts)
        or (not bits.confounded(()) and bool(output.confounded(())))
    )


def _with_jitter(output: Analysis, failing: Sequence[Control]) -> Analysis:
    return Analysis(
        output.table, output.level, output.divergence, output.controls, output.contrasts,
        output.pooled, tuple(failing),
    )  # fmt: skip


def _at(table: Table, level: Level, kind: Kind) -> Analysis:
    table, pooled = _pool_labels(table, level)
    return Analysis(
        table, level, kind, tuple(controls(table, level)), tuple(contrasts(table, level)), pooled
    )


def _pool_labels(table: Table, level: Level) -> tuple[Table, tuple[str, ...]]:
    """Drop a label bundle (server start, replica, order) that is shown inert: at least two of its
    values were compared inside every arm of the other bundles, and none changed the outcome."""
    pooled: list[str] = []
    for bundle in table.bundles:
        if not set(bundle.factors) <= LABELS or not _inert(table, bundle, level):
            continue
        pooled.append(bundle.label)
        table = Table(
            table.frame,
            table.observations,
            tuple(b for b in table.bundles if b.column != bundle.column),
            table.constant,
            table.mediators,
        )
    return table, tuple(pooled)


def _inert(table: Table, bundle: Bundle, level: Level) -> bool:
    others = [b.column for b in table.bundles if b.column != bundle.column]
    rows = table.frame[table.frame[level] >= 0]
    groups = rows.groupby(["query", f"{level}_channels", *others], sort=False)
    return bool(
        (groups[bundle.column].nunique() > 1).all() and (groups[level].nunique() == 1).all()
    )
