"""The audit for a terminal: findings by place, then the parameters that act."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from detdiag.evidence.finding import Finding

_ESCAPES: Final = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))},
    **{
        code: f"\\u{code:04x}"
        for code in (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF)
    },
}


def clean(text: Any, limit: int = 300) -> str:
    """One printable line: control, bidi and zero-width characters as escapes."""
    shown = str(text).translate(_ESCAPES)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def findings_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Two lines a finding: what and where, then the way out."""
    for finding in findings:
        if finding.kind == "ok":
            continue
        rule = finding.data.get("rule_id", finding.rule)
        yield clean(
            f"{finding.where or '-'}: {finding.severity}: {finding.kind}: {finding.subject}: "
            f"{finding.summary} [{rule}]",
            600,
        )
        if finding.remedy is not None:
            cost = f" (cost: {finding.remedy.cost})" if finding.remedy.cost else ""
            yield clean(f"    fix: {finding.remedy.action}{cost}", 600)


def notes_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """One line for each note that accuses nothing."""
    for finding in findings:
        if finding.kind == "ok":
            yield clean(f"{finding.where or '-'}: note: {finding.subject}: {finding.summary}", 600)


_SENTENCES: Final = {"decoding": "decoding", "tie_break": "ties", "rng_scope": "random numbers"}


def effective_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The parameter table: value, where it came from, what was ignored; then how it decodes."""
    values = [row for row in rows if row["parameter"] not in _SENTENCES]
    if values:
        yield "effective parameters:"
        header = ("surface", "parameter", "value", "from", "ignored")
        table = [header, *(_cells(row) for row in values)]
        widths = [max(len(row[i]) for row in table) for i in range(4)]
        for cells in table:
            padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
            yield ("  " + "  ".join([*padded, cells[4]])).rstrip()
    for row in rows:
        name = _SENTENCES.get(row["parameter"])
        if name is not None:
            why = f" ({row['origin']})" if name == "decoding" else ""
            since = f" [{row['versions']}]" if row.get("versions") else ""
            yield clean(f"{name}: {row['surface']}: {row['value']}{why}{since}")


def _cells(row: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    origin = str(row["origin"])
    if row.get("note"):
        origin += f" ({row['note']})"
    if row.get("versions"):
        origin += f" [{row['versions']}]"
    return (
        clean(row["surface"], 40),
        clean(row["parameter"], 40),
        clean(row["value"], 40),
        clean(origin, 120),
        clean("; ".join(row["ignored"]), 120),
    )


def closing_line(findings: Sequence[Finding], files: int, fail_on: str, reached: int) -> str:
    """The last line: how many of which severity."""
    accused = [f for f in findings if f.kind != "ok"]
    counts = [
        f"{sum(f.severity == s for f in accused)} {s}"
        for s in ("high", "medium", "low", "info")
        if any(f.severity == s for f in accused)
    ]
    plural = "s" if files != 1 else ""
    what = ", ".join(counts) if counts else "nothing found"
    return f"Audited {files} file{plural}: {what}; at or above {fail_on}: {reached}."
