"""Remedies that were tried: the attributed contrast before and after, and what each one costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from detdiag.report import model
from detdiag.report.messages import Say, has
from detdiag.report.numbers import bytes_text, k_of_n, number
from detdiag.report.safe import finite, one_line, visible
from detdiag.report.tables.core import Table, make_table

Row = Mapping[str, Any]


def trials_of(report: model.Report) -> Mapping[str, Any]:
    """The table of trials that a run with ``--verify-remedies`` recorded; empty without one."""
    return model.mapping(model.data(report).get("remedies"))


def trials_table(report: model.Report, say: Say) -> Table:
    """One row a remedy, the run as it is first."""
    found = trials_of(report)
    before = model.mapping(found.get("before"))
    rows = model.rows(found.get("trials"))
    if not rows and not before:
        return Table(say("trials.caption", compares=""), (), ())
    source: list[Row] = [{"title": say("trials.as_is"), "after": before}, *rows]
    return make_table(
        say,
        say("trials.caption", compares=compared(found, say)),
        source,
        [
            ("head.remedy", lambda r: one_line(r.get("title"), 80), False),
            ("head.outcome", lambda r: outcome_word(r, say), False),
            ("head.pairs_differ", _after(lambda a: k_of_n(a)), True),
            ("head.control", _after(_control), True),
            ("head.flips", _after(_flips), True),
            ("head.max_abs_logit", _after(lambda a: number(a.get("max_abs_logit"))), True),
            ("head.tokens_per_s", _after(lambda a: number(a.get("tokens_per_s"))), True),
            ("head.speed_ratio", lambda r: number(finite(r.get("speed_ratio"))), True),
            ("head.peak_memory", _after(_memory), True),
            ("head.same_answer", lambda r: _yes_no(r.get("same_answer"), say), False),
            ("head.note", _note, False),
        ],
    )


def compared(found: Row, say: Say) -> str:
    """What the trials compare, in the report's language."""
    key = f"trial_kind.{found.get('contrast')}"
    return say(key) if has(key) else one_line(found.get("compares"), 120)


def skipped_lines(report: model.Report) -> list[str]:
    """Remedies that were not tried, each with its reason, and the note of the whole table."""
    found = trials_of(report)
    lines = [
        f"{visible(r.get('title'))}: {visible(r.get('reason'))}"
        for r in model.rows(found.get("skipped"))
    ]
    return ([visible(found["note"])] if found.get("note") else []) + lines


def measured_text(measured: Row, say: Say) -> str:
    """``helped: 8/8 -> 0/8 pairs differ, 0.42 x the speed`` for one remedy in a list."""
    if not measured:
        return ""
    if "after" not in measured:
        return ", ".join(f"{visible(k)}={number(v)}" for k, v in measured.items())
    before, after = model.mapping(measured.get("before")), model.mapping(measured.get("after"))
    parts = [outcome_word(measured, say)]
    if after.get("error"):
        parts.append(one_line(after["error"], 160))
    else:
        parts.append(say("trials.pairs", before=k_of_n(before), after=k_of_n(after)))
        if _flips(before) != "–":
            parts.append(say("trials.flips", before=_flips(before), after=_flips(after)))
    if measured.get("speed_ratio") is not None:
        parts.append(say("trials.speed", ratio=number(finite(measured["speed_ratio"]))))
    change = finite(measured.get("memory_delta_bytes"))
    if change is not None:
        size = ("+" if change >= 0 else "−") + bytes_text(abs(int(change)))
        parts.append(say("trials.memory", size=size))
    if measured.get("same_answer") is False:
        parts.append(say("trials.other_bits"))
    return ", ".join(parts)


def outcome_word(row: Row, say: Say) -> str:
    key = f"trial_outcome.{str(row.get('outcome')).replace(' ', '_')}"
    return say(key) if has(key) else "–"


def _after(cell: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: cell(model.mapping(row.get("after")))


def _control(counts: Row) -> str:
    return k_of_n(counts, "control_k", "control_n") if counts.get("control_n") else "–"


def _flips(counts: Row) -> str:
    if counts.get("positions"):
        return k_of_n(counts, "flips", "positions")
    return k_of_n(counts, "texts", "texts_n") if counts.get("texts_n") else "–"


def _memory(counts: Row) -> str:
    size = finite(counts.get("peak_memory_bytes"))
    return "–" if size is None else bytes_text(int(size))


def _yes_no(value: Any, say: Say) -> str:
    return "–" if value is None else say("yes" if value else "no")


def _note(row: Row) -> str:
    after = model.mapping(row.get("after"))
    return one_line(after.get("error") or row.get("note") or "", 160)


__all__: Sequence[str] = ("measured_text", "skipped_lines", "trials_of", "trials_table")
