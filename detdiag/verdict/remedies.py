"""What to do about a named rule: the finding's own remedy, the rule base's, the catalogue's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from detdiag.evidence.case import Case
from detdiag.evidence.finding import Finding, Remedy
from detdiag.rules.verdict_rules import describe
from detdiag.verdict.remedy_catalogue import BLACK, BLACK_BOX, WHITE, WHITE_BOX, Entry
from detdiag.verdict.report_object import Next, Report

_OUTSIDE: Final = ("version.model-differs", "version.replica-differs", "version.reported-changed",
                   "version.fingerprint-changed", "config.best-effort-only")  # fmt: skip
"""Rules whose own remedies a client can carry out."""
_SERVERS: Final = re.compile(r"\b(vllm|sglang|ollama) serve|llama-server|trtllm-serve")
_BY_MODULE: Final = "row_invariant_modules"
_RANK: Final = {"helped": 0, None: 1, "undecided": 2, "reduced": 3, "error": 4, "no effect": 5}


def with_remedy(finding: Finding) -> Finding:
    """``finding`` with a remedy, where the rule base knows one and it carries none."""
    if finding.remedy is not None or finding.outcome != "failed":
        return finding
    text = describe(finding.rule)
    if text is None or not text.remedies:
        return finding
    first = text.remedies[0]
    remedy = Remedy(first.action, first.command, first.cost, text.verify, first.source)
    return replace(finding, remedy=remedy)


def next_after(finding: Finding) -> tuple[Next, ...]:
    """The fix as the next step, and how to see that it worked."""
    remedy = with_remedy(finding).remedy
    if remedy is None:
        return ()
    steps = [Next(remedy.action, remedy.command or "")]
    if remedy.verify:
        steps.append(Next("verify the fix", remedy.verify))
    return tuple(steps)


def with_remedies(report: Report, case: Case) -> Report:
    """``report`` with its two lists of remedies; without any where nothing was attributed."""
    verdict = report.verdict
    if verdict.layer is None or verdict.rule is None:
        return report
    return replace(report, remedies=remedy_lists(report, case))


def remedy_lists(report: Report, case: Case) -> dict[str, Any]:
    """``white_box``, ``black_box`` (best effect over cost first, measured ones by what they did)
    and ``figures``, the arithmetic on this run."""
    found = _figures(report, case)
    table = case.series.get("remedies")
    tried = _tried(table)
    rows: dict[str, list[dict[str, Any]]] = {WHITE: [], BLACK: []}
    first = report.verdict.first_divergence
    module = first.module if first is not None else None
    for layer, rule in _causes(report):
        for row in _gathered(report, layer, rule, found, module, tried):
            _measured(row, tried)
            if not any(_same(row, other) for other in rows[row["box"]]):
                rows[row["box"]].append(row)
    return {box: [_plain(r) for r in sorted(rows[box], key=_order)] for box in (WHITE, BLACK)} | (
        {"figures": found} if found else {}
    )


def _causes(report: Report) -> list[tuple[str, str]]:
    verdict = report.verdict
    assert verdict.layer is not None and verdict.rule is not None
    return [(verdict.layer, verdict.rule), *((a.layer, a.rule) for a in verdict.also)]


def _gathered(
    report: Report,
    layer: str,
    rule: str,
    found: Mapping[str, Any],
    module: str | None,
    tried: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """What the findings carry, then the catalogue, then ready commands of the rule base."""
    box = BLACK if rule in _OUTSIDE else WHITE
    text = describe(rule)
    generic = {r.action for r in text.remedies} if text is not None else set()
    own = [
        _row(
            layer,
            rule,
            box,
            finding.remedy.to_dict(),
            3 if finding.remedy.action in generic and not finding.remedy.command else 4,
            3,
        )
        for block in report.layers
        for finding in block.findings
        if (block.layer, finding.rule, finding.outcome) == (layer, rule, "failed")
        and finding.remedy is not None
    ]
    listed = [
        _of_entry(layer, rule, entry, found, module)
        for entry in (*WHITE_BOX, *BLACK_BOX)
        if rule.startswith(entry.rules)
        and (entry.trial != _BY_MODULE or module or _BY_MODULE in tried)
    ]
    known = any(row["box"] == box for row in listed)
    base = [
        _row(
            layer,
            rule,
            box,
            {
                "action": r.action,
                "command": r.command,
                "cost": r.cost,
                "source": r.source,
                "verify": text.verify,
            },
            3,
            1,
        )
        for r in (text.remedies if text is not None else ())
        if text is not None and (r.command or not known)
    ]
    if report.target.get("kind") == "local":
        for row in listed:
            row["_order"] = (row["_order"][0], _is_server(row), row["_order"][2])
    return [*own, *listed, *base]


def _is_server(row: Mapping[str, Any]) -> int:
    """1 for a setting of an engine that a local model does not run in."""
    return int(row.get("trial") is None and bool(_SERVERS.search(str(row.get("command")))))


def _of_entry(
    layer: str, rule: str, entry: Entry, found: Mapping[str, Any], module: str | None
) -> dict[str, Any]:
    from detdiag.verdict.remedy_figures import clean_sentence, steps_sentence, vote_sentence

    given = {
        "action": entry.action, "command": entry.command, "cost": entry.cost,
        "source": entry.source, "verify": entry.verify, "trial": entry.trial,
    }  # fmt: skip
    row = _row(layer, rule, entry.box, given, entry.effect, entry.cost_rank, entry.kind)
    command = entry.command or ""
    if entry.trial == _BY_MODULE and module:
        row["command"] = command = command.replace("MODULES", f"[{module!r}]")
    arithmetic: str | None = None
    if "majority_vote" in command:
        arithmetic = vote_sentence(found)
        modal, votes = found.get("modal") or {}, found.get("votes") or {}
        votes = votes.get("at_lower_end") if modal.get("k") != modal.get("n") else None
        row["command"] = command.replace("VOTES", str(votes)) if votes else command
    elif entry.kind == "prevent" and entry.box == BLACK:
        arithmetic = steps_sentence(found)
    elif entry.kind == "detect":
        arithmetic = clean_sentence(found)
    if arithmetic:
        row["arithmetic"] = arithmetic
    return row


def _row(
    layer: str, rule: str, box: str, given: Mapping[str, Any], effect: int, cost: int,
    kind: str = "mitigate",
) -> dict[str, Any]:  # fmt: skip
    row = {"layer": layer, "rule": rule, "box": box, "type": kind, "effect": effect}
    row |= {key: value for key, value in given.items() if value}
    return {**row, "_order": (-effect, 0, cost)}


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if a.get("trial") is not None and a.get("trial") == b.get("trial"):
        return True
    if a["action"] == b["action"]:
        return True
    return bool(a.get("command")) and a.get("command") == b.get("command")


def _tried(table: Any) -> dict[str, Mapping[str, Any]]:
    rows = table.get("trials", ()) if isinstance(table, Mapping) else ()
    return {str(r.get("remedy")): r for r in rows if isinstance(r, Mapping)}


def _measured(row: dict[str, Any], tried: Mapping[str, Mapping[str, Any]]) -> None:
    """Join the trial of a remedy: what it did here, with its measured cost before the quoted."""
    trial = tried.get(str(row.get("trial")))
    if trial is None:
        return
    row["measured"] = {k: v for k, v in trial.items() if k not in ("remedy", "title")}
    row["outcome"] = trial.get("outcome")
    cost = _measured_cost(trial)
    if cost:
        if row.get("cost"):
            row["documented_cost"] = row["cost"]
        row["cost"] = cost
    names = str(trial.get("setting")).partition("modules=")[2].partition(")")[0]
    if names:
        row["command"] = re.sub(
            r"modules=(\[[^\]]*\]|MODULES)", lambda _: f"modules={names}", row["command"]
        )


def _measured_cost(trial: Mapping[str, Any]) -> str:
    """Speed and memory as measured here, in place of what somebody else measured elsewhere."""
    parts = []
    if trial.get("speed_ratio") is not None:
        parts.append(f"{trial['speed_ratio']:.2g} times the speed")
    if trial.get("memory_delta_bytes") is not None:
        parts.append(f"{trial['memory_delta_bytes'] / 1e6:+.1f} MB peak memory")
    return f"measured here: {', '.join(parts)}" if parts else ""


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    ratio = row.get("measured", {}).get("speed_ratio") or 0.0
    rank = _RANK.get(row.get("outcome"), 1)
    return (rank, -ratio if rank == 0 else 0.0, *row["_order"])


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in ("_order", "box", "effect")}


def _figures(report: Report, case: Case) -> dict[str, Any]:
    if not case.observations:
        return {}
    from detdiag.verdict.remedy_figures import figures

    contrasts = [c for c in report.data.get("contrasts") or () if isinstance(c, Mapping)]
    controls = [c for c in report.data.get("controls") or () if isinstance(c, Mapping)]
    mine = [c for c in contrasts if c.get("layer") == report.verdict.layer and c.get("k")]
    repeats = [{**c, "factor": "repeat"} for c in controls if c.get("k")]
    return figures(case.observations, mine or repeats or contrasts)
