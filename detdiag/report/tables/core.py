"""A table of display strings, and the cells that most tables share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detdiag.report.messages import Say, has
from detdiag.report.numbers import interval, k_of_n, number
from detdiag.report.safe import one_line, visible

LONGEST: Final = 200
"""Rows of a table before it is cut (the caption says so)."""


@dataclass(frozen=True, slots=True)
class Table:
    """``rows`` of display strings under ``heads``; ``numeric`` marks right-aligned columns."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.rows)


def make_table(
    say: Say,
    caption: str,
    source: Sequence[Mapping[str, Any]],
    columns: Sequence[tuple[str, Callable[[Mapping[str, Any]], str], bool]],
    limit: int = LONGEST,
) -> Table:
    """A table with the columns ``(message key of the head, cell function, numeric)``.

    Columns without a single value are left out; rows beyond ``limit`` are cut and counted.
    """
    shown = source[:limit]
    cells = [[fn(row) for _, fn, _ in columns] for row in shown]
    kept = [i for i in range(len(columns)) if any(row[i] not in ("", "–") for row in cells)]
    if len(source) > limit:
        caption = f"{caption} ({say('table.cut', shown=limit, all=len(source))})"
    return Table(
        caption,
        tuple(say(columns[i][0]) for i in kept),
        tuple(tuple(row[i] for i in kept) for row in cells),
        frozenset(place for place, i in enumerate(kept) if columns[i][2]),
    )


def field_cell(key: str, limit: int | None = 160) -> Callable[[Mapping[str, Any]], str]:
    def cell(row: Mapping[str, Any]) -> str:
        value = row.get(key)
        if value is None:
            return "–"
        if isinstance(value, (dict, list, tuple)):
            from detdiag.report.safe import dump_json

            return one_line(dump_json(value, indent=None), limit)
        return number(value) if isinstance(value, float) else one_line(value, limit)

    return cell


def counted(k: str = "k", n: str = "n") -> Callable[[Mapping[str, Any]], str]:
    return lambda row: k_of_n(row, k, n)


def ci_cell(row: Mapping[str, Any]) -> str:
    return interval(row.get("ci95"))


def yes_no(say: Say, key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "–" if row.get(key) is None else say("yes" if row[key] else "no")


def condition_text(value: Any) -> str:
    """A condition dict as ``key=value, key=value``; any other value as text."""
    if isinstance(value, Mapping):
        return ", ".join(_named(str(k), v) for k, v in value.items()) or "–"
    if isinstance(value, (list, tuple)):
        return " / ".join(condition_text(v) for v in value)
    return one_line(value, 200)


def _named(key: str, value: Any) -> str:
    """``key=value``; the value of factors that move together names them itself."""
    if " + " in key and "=" in str(value):
        return one_line(value, 160)
    return f"{visible(key)}={one_line(value, 60)}"


def phrase(value: Any, say: Say) -> str:
    """A fixed English phrase of the verdict in the report's language, other text as it is."""
    text = visible(value)
    return say(f"phrase.{text}") if has(f"phrase.{text}") else text
