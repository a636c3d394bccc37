"""Names that always move together are one factor, not a confounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

ROUTE_FACTORS: Final = ("replica", "provider", "system_fingerprint", "model_reported")
"""Factors that can be several names of one place or build, in the order of who keeps the name."""


def replica_names(rows: Sequence[Mapping[str, str]]) -> list[str | None]:
    """One replica name a row from its labels; labels that never vary are left out of the name
    unless nothing varies."""
    values: dict[str, set[str | None]] = {}
    for row in rows:
        for key in row:
            values.setdefault(key, set())
    for row in rows:
        for key, seen in values.items():
            seen.add(row.get(key))
    varying = [key for key, seen in values.items() if len(seen) > 1]
    shown = _fewest(rows, varying) or list(values)[:1]
    return [_name(row, shown) for row in rows]


def _fewest(rows: Sequence[Mapping[str, str]], keys: list[str]) -> list[str]:
    """Drop labels that the labels before them already decide (a region of its machines)."""
    kept: list[str] = []
    for key in keys:
        if not _decides(rows, kept, key):
            kept = [k for k in kept if not _decides(rows, [key], k)] + [key]
    return kept


def _decides(rows: Sequence[Mapping[str, Any]], keys: list[str], target: str) -> bool:
    seen: dict[tuple[Any, ...], Any] = {}
    for row in rows:
        if seen.setdefault(tuple(row.get(k) for k in keys), row.get(target)) != row.get(target):
            return False
    return True


def _name(row: Mapping[str, str], keys: list[str]) -> str | None:
    parts = [row[key] for key in keys if row.get(key)]
    return " ".join(parts) or None


def merge_aliases(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Fold route factors that are in bijection over ``rows`` into the first of them, in place.

    Factors with one value over all rows stay: they cannot be confounded. Returns the folded names
    with the factor that each became.
    """
    varying = [name for name in ROUTE_FACTORS if len({_key(r.get(name)) for r in rows}) > 1]
    folded: dict[str, str] = {}
    for index, keeper in enumerate(varying):
        if keeper in folded:
            continue
        for other in varying[index + 1 :]:
            if other not in folded and _same(rows, keeper, other):
                folded[other] = keeper
                for row in rows:
                    row.pop(other, None)
    return folded


def _same(rows: Sequence[Mapping[str, Any]], a: str, b: str) -> bool:
    pairs = {(_key(r.get(a)), _key(r.get(b))) for r in rows}
    return len(pairs) == len({p[0] for p in pairs}) == len({p[1] for p in pairs})


def _key(value: Any) -> str | None:
    return None if value is None else repr(value)
