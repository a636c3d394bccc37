"""One sentence over each section: what its figure and table show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.report.messages import Say
from detdiag.report.numbers import number
from detdiag.report.safe import one_line
from detdiag.score import words
from detdiag.score.plots import condition_rows


def prompts_finding(score: Mapping[str, Any], say: Say) -> str:
    rows = score["prompts"]
    moved = [row for row in rows if row["distinct"] > 1]
    if not moved:
        return say("prompts.finding_all", n=len(rows))
    worst = min(moved, key=lambda row: row["agreement"] if row["agreement"] is not None else 2.0)
    return say(
        "prompts.finding",
        k=len(moved),
        n=len(rows),
        query=one_line(worst["query"], 60),
        agreement=words.share(worst["agreement"]),
        distinct=worst["distinct"],
    )


def conditions_finding(score: Mapping[str, Any], say: Say) -> str:
    rows = condition_rows(score, say)

    def listed(inside: bool) -> str:
        return ", ".join(
            f"{one_line(r['name'], 60)} {words.share(r['value'])}"
            for r in rows
            if r["inside"] == inside
        )

    if not any(not row["inside"] for row in rows):
        return say("conditions.one", inside=listed(True) or "–")
    return say("conditions.finding", inside=listed(True) or "–", between=listed(False))


def survival_finding(score: Mapping[str, Any], say: Say) -> str:
    unit = score["survival"]["unit"]
    curve = score["survival"]["curves"][0] if score["survival"]["curves"] else None
    if curve is None or len(curve["t"]) < 2:
        return ""
    first = words.named(score["figures"], "first fork")
    fields = {"unit": unit, "unit_word": say(f"unit.{unit}"), "places": curve["t"][-1]}
    if first is None:
        return say("survival.none", **{**fields, "unit": say(f"unit.{unit}")})
    end = words.share(curve["share"][-1])
    return say("survival.finding", end=end, first=first["value"], **fields)


def compare_lines(score: Mapping[str, Any], say: Say) -> list[str]:
    """What the comparison shows and what it cannot."""
    found = score.get("compare")
    if not found:
        return []
    if found["why"] == "none":
        return [say("compare.none")]
    n = found["prompts"]
    out = [
        say(
            "compare.finding",
            before=words.share(found["before"]),
            after=words.share(found["after"]),
            change=f"{found['change']:+.4f}",
            n=n,
        )
    ]
    if found["why"]:
        out.append(say(f"compare.{found['why']}"))
    elif found["p"] is not None:
        counts = {k: found[k] for k in ("up", "down", "same")}
        least = number(found["smallest_p"], 3)
        out.append(say("compare.p", p=number(found["p"], 3), **counts))
        out.append(say("compare.smallest", n=n, least=least))
    names, runs = found["conditions"], found["runs"]
    if names["before"] != names["after"]:
        shown = {k: ", ".join(one_line(c, 60) for c in v) for k, v in names.items()}
        out.append(say("compare.conditions", **shown))
    if found.get("other_ids"):
        out.append(say("compare.ids", n=found["other_ids"]))
    if runs["before"] != runs["after"]:
        out.append(say("compare.runs", **runs))
    return out
