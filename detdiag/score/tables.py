"""Tables of the score, as display strings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.report.messages import Say
from detdiag.report.numbers import number
from detdiag.report.safe import one_line
from detdiag.report.tables.core import Table, make_table
from detdiag.score import words
from detdiag.score.plots import condition_rows


def figures_table(score: Mapping[str, Any], say: Say) -> Table:
    def name(row: Mapping[str, Any]) -> str:
        unit = row.get("unit")
        shown = say(f"unit.{unit}") if unit else ""
        return words.figure_name(row["name"], say) + (f" ({shown})" if shown else "")

    return make_table(
        say,
        say("figures.title"),
        score["figures"],
        [
            ("head.figure", name, False),
            ("head.value", words.figure_value, True),
            ("head.ci", words.figure_interval, True),
            ("head.prompts", lambda r: str(r["prompts"]), True),
        ],
    )


def conditions_table(score: Mapping[str, Any], say: Say) -> Table:
    runs = {row["condition"]: row for row in score["conditions"]}

    def of(name: str) -> Any:
        def cell(row: Mapping[str, Any]) -> str:
            found = runs.get(row["name"]) if row["inside"] else None
            figure = words.named(found["figures"], name) if found else None
            return "–" if figure is None else words.figure_value(figure)

        return cell

    return make_table(
        say,
        say("conditions.title"),
        condition_rows(score, say),
        [
            ("head.condition", lambda r: one_line(r["name"], 80), False),
            ("head.runs", lambda r: str(runs[r["name"]]["runs"]) if r["inside"] else "–", True),
            ("head.agreement", lambda r: words.share(r["value"]), True),
            ("head.ci", lambda r: words.figure_interval({**r, "name": ""}), True),
            ("head.tarr", of("TARr"), True),
            ("head.hazard", of("fork hazard"), True),
            ("head.digest", of("digest agreement, to the first fork"), True),
        ],
    )


def prompts_table(score: Mapping[str, Any], say: Say) -> Table:
    def modal(row: Mapping[str, Any]) -> str:
        found = row["modal"]
        ends = found["ci95"]
        shown = f"{found['k']}/{found['n']}"
        return shown if ends is None else f"{shown} [{ends[0]:.3f}–{ends[1]:.3f}]"

    rows = sorted(score["prompts"], key=lambda r: (r["agreement"] is None, r["agreement"] or 0))
    return make_table(
        say,
        say("prompts.title"),
        rows,
        [
            ("head.query", lambda r: one_line(r["query"], 60), False),
            ("head.runs", lambda r: str(r["runs"]), True),
            ("head.agreement", lambda r: words.share(r["agreement"]), True),
            ("head.distinct", lambda r: str(r["distinct"]), True),
            ("head.modal", modal, True),
            ("head.edit", lambda r: words.share(r["edit"]), True),
            ("head.fork", lambda r: "–" if r["first_fork"] is None else str(r["first_fork"]), True),
            ("head.digest", lambda r: words.share(r["digest"]), True),
            ("head.answers", lambda r: "–" if r["answers"] is None else str(r["answers"]), True),
        ],
    )


def compare_table(score: Mapping[str, Any], say: Say) -> Table:
    found = score.get("compare") or {"figures": []}

    def change(row: Mapping[str, Any]) -> str:
        return number(row["after"]["value"] - row["before"]["value"], 3)

    return make_table(
        say,
        say("compare.title"),
        found["figures"],
        [
            ("head.figure", lambda r: words.figure_name(r["name"], say), False),
            ("head.before", lambda r: words.figure_value(r["before"]), True),
            ("head.after", lambda r: words.figure_value(r["after"]), True),
            ("head.change", change, True),
        ],
    )


def paired_table(score: Mapping[str, Any], say: Say) -> Table:
    found = score.get("compare") or {"rows": []}
    return make_table(
        say,
        say("head.query"),
        found["rows"],
        [
            ("head.query", lambda r: one_line(r["query"], 60), False),
            ("head.before", lambda r: words.share(r["before"]), True),
            ("head.after", lambda r: words.share(r["after"]), True),
            ("head.change", lambda r: number(r["after"] - r["before"], 3), True),
        ],
    )
