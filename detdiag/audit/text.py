"""The audit for a terminal: findings by place, then the parameters that act."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from unicodedata import east_asian_width

from detdiag.evidence.finding import Finding
from detdiag.report.messages import speaker

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


def findings_lines(findings: Sequence[Finding], lang: str = "en") -> Iterator[str]:
    """Two lines a finding: what and where, then the way out."""
    say, tell = speaker(lang), teller(lang)
    for finding in findings:
        if finding.kind == "ok":
            continue
        rule = finding.data.get("rule_id", finding.rule)
        kind = finding.kind if lang == "en" else tell(f"kind {finding.kind}")
        yield clean(
            f"{finding.where or '-'}: {say(f'severity.{finding.severity}')}: {kind}: "
            f"{finding.subject}: {tell(finding.summary)} [{rule}]",
            600,
        )
        if finding.remedy is not None:
            cost = finding.remedy.cost
            after = say("audit.cost", cost=tell(cost)) if cost else ""
            yield clean(f"    {say('audit.fix')}: {tell(finding.remedy.action)}{after}", 600)


def notes_lines(findings: Sequence[Finding], lang: str = "en") -> Iterator[str]:
    """One line for each note that accuses nothing."""
    say, tell = speaker(lang), teller(lang)
    for finding in findings:
        if finding.kind == "ok":
            yield clean(
                f"{finding.where or '-'}: {say('head.note')}: {finding.subject}: "
                f"{tell(finding.summary)}",
                600,
            )


def teller(lang: str) -> Callable[[str], str]:
    """Sentences of rules in ``lang``; the templates are only read for another than English."""
    if lang == "en":
        return str
    from detdiag.report.phrases import advice

    return partial(advice, lang=lang)


_SENTENCES: Final = ("decoding", "tie_break", "rng_scope")


def effective_lines(rows: Sequence[Mapping[str, Any]], lang: str = "en") -> Iterator[str]:
    """The parameter table: value, where it came from, what was ignored; then how it decodes."""
    say = speaker(lang)
    shown = [_told(row, lang) for row in rows]
    values = [row for row in shown if row["parameter"] not in _SENTENCES]
    if values:
        yield say("audit.parameters")
        columns = ("head.surface", "head.parameter", "head.value", "audit.from", "head.ignored")
        table = [tuple(map(say, columns)), *map(_cells, values)]
        widths = [max(columns_of(row[i]) for row in table) for i in range(4)]
        for cells in table:
            padded = [
                cell + " " * (n - columns_of(cell)) for cell, n in zip(cells, widths, strict=False)
            ]
            yield ("  " + "  ".join([*padded, cells[4]])).rstrip()
    for row in shown:
        if row["parameter"] in _SENTENCES:
            name = say(f"audit.{row['parameter']}")
            why = f" ({row['origin']})" if row["parameter"] == "decoding" else ""
            since = f" [{row['versions']}]" if row.get("versions") else ""
            yield clean(f"{name}: {row['surface']}: {row['value']}{why}{since}")


def _told(row: Mapping[str, Any], lang: str) -> Mapping[str, Any]:
    if lang == "en":
        return row
    from detdiag.report.phrases import parameter

    told: Mapping[str, Any] = parameter(row, lang)
    return told


def columns_of(text: str) -> int:
    """Columns of a terminal: a Chinese character takes two."""
    return len(text) if text.isascii() else sum(1 + (east_asian_width(c) in "WF") for c in text)


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


def closing_line(
    findings: Sequence[Finding], files: int, fail_on: str, reached: int, lang: str = "en"
) -> str:
    """The last line: how many of which severity."""
    say = speaker(lang)
    accused = [f for f in findings if f.kind != "ok"]
    counts = [
        say("audit.count", n=sum(f.severity == s for f in accused), severity=say(f"severity.{s}"))
        for s in ("high", "medium", "low", "info")
        if any(f.severity == s for f in accused)
    ]
    return say(
        "audit.closing" if files != 1 else "audit.closing_one",
        files=files,
        what=", ".join(counts) if counts else say("audit.nothing"),
        level=fail_on if fail_on == "never" else say(f"severity.{fail_on}"),
        reached=reached,
    )
