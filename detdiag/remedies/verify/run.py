"""Plan the trials of one verdict, run each in a child within a budget, and judge them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from detdiag.remedies.verify.child import run_child
from detdiag.remedies.verify.contrast import WORDS, Contrast
from detdiag.remedies.verify.trials import Trial, trials_for
from detdiag.verdict.stats import ALPHA, fisher_greater, wilson

SLACK: Final = 1.3
"""A trial is started only if this many times the first child's wall time is left."""
PATIENCE: Final = 6.0
"""A trial may take this many times as long as the run as it is (and ten seconds)."""
FEWER_BY_CHANCE: Final = 0.001
BY_CHANCE: Final = ("repeat", "generate")
"""Contrasts of identical runs, which differ by chance."""
_COUNTS: Final = (
    "k n control_k control_n flips positions texts texts_n max_abs_logit max_ulp tokens_per_s "
    "peak_memory_bytes wall_s cut".split()
)
Child = Callable[..., dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """``load`` are the arguments of ``load_local``, ``questions`` the prompts as data, ``modules``
    what the operator proof named."""

    rule: str
    contrast: Contrast
    load: Mapping[str, Any]
    questions: Sequence[Mapping[str, Any]] = ()
    generate_kwargs: Mapping[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    threads: int = 1


def verify(
    plan: Plan,
    budget_s: float,
    *,
    child: Child = run_child,
    tell: Callable[[str], None] = lambda line: None,
    table: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The table of trials: ``before``, ``trials`` (each with before and after), ``skipped``.

    ``table`` is filled as trials finish, so that an interrupted caller keeps what was measured.
    """
    end = time.monotonic() + budget_s
    table = {} if table is None else table
    table |= {
        "rule": plan.rule,
        "contrast": plan.contrast.kind,
        "compares": WORDS[plan.contrast.kind],
        "budget_s": round(budget_s, 1),
        "trials": [],
        "skipped": [],
    }
    before = child(_job(plan, None, {}, end), timeout_s=end - time.monotonic())
    table["before"] = _shown(before)
    if "error" in before:
        table["note"] = f"the contrast could not be measured in a fresh process: {before['error']}"
        return table
    tell(f"as is: {_counted(before)}")
    if not before["k"]:
        table["note"] = (
            f"in a fresh process {_counted(before)}: there is nothing that a remedy could stop"
        )
        return table
    plan = _enough_reruns(plan, before)
    for row in _trials(plan, before, end, child, table["skipped"]):
        table["trials"].append(row)
        tell(f"{row['title']}: {row['outcome']}")
    return table


def _enough_reruns(plan: Plan, before: Mapping[str, Any]) -> Plan:
    """As many reruns as it takes for none of them differing to be no accident (five times the
    first number at most)."""
    if plan.contrast.kind not in BY_CHANCE:
        return plan
    k, n = before["k"], before["n"]
    enough = (m for m in range(n, 5 * n + 1) if fisher_greater(k, n, 0, m) <= ALPHA)
    return replace(plan, contrast=replace(plan.contrast, reruns=next(enough, 5 * n)))


def _trials(
    plan: Plan, before: Mapping[str, Any], end: float, child: Child, skipped: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    facts = {**before["facts"], "modules": plan.modules}
    for trial in trials_for(plan.rule, plan.contrast.kind):
        reason = trial.why_not(facts)
        left = end - time.monotonic()
        if reason is None and left < SLACK * before["wall_s"]:
            reason = "the budget was used up"
        if reason is not None:
            skipped.append({"remedy": trial.name, "title": trial.title, "reason": reason})
            continue
        allowed = min(left, PATIENCE * before["wall_s"] + 10.0)
        job = _job(plan, trial, facts, time.monotonic() + allowed)
        after = child(job, env=trial.env, timeout_s=allowed)
        yield judged(trial, before, after, plan)


def _job(plan: Plan, trial: Trial | None, facts: Mapping[str, Any], end: float) -> dict[str, Any]:
    load = dict(plan.load)
    if trial is not None:
        load.update(trial.load)
    left = end - time.monotonic()
    return {
        "load": load,
        "threads": plan.threads,
        "questions": [dict(q) for q in plan.questions],
        "generate_kwargs": dict(plan.generate_kwargs),
        "contrast": plan.contrast.to_job(),
        "wraps": list(trial.wraps) if trial else [],
        "policy": trial.policy if trial else "",
        "call": dict(trial.call) if trial else {},
        "modules": list(plan.modules),
        "limit_s": max(left * 0.6, 1.0),
    }


def judged(
    trial: Trial, before: Mapping[str, Any], after: Mapping[str, Any], plan: Plan
) -> dict[str, Any]:
    """One row of the table: what was set, before and after, and the outcome in a word."""
    setting = trial.setting
    if plan.modules:
        names = ", ".join(repr(m) for m in plan.modules)
        setting = setting.replace("modules=[...]", f"modules=[{names}]")
    row: dict[str, Any] = {
        "remedy": trial.name,
        "title": trial.title,
        "setting": setting,
        "before": _shown(before),
        "after": _shown(after),
    }
    if "error" in after:
        return {**row, "outcome": "error", "note": after["error"]}
    outcome, note = outcome_of(before, after, plan.contrast.kind)
    row |= {"outcome": outcome, "note": note, **_costs(before, after)}
    if before["reference"] and len(before["reference"]) == len(after["reference"]):
        row["same_answer"] = before["reference"] == after["reference"]
    return row


def outcome_of(before: Mapping[str, Any], after: Mapping[str, Any], kind: str) -> tuple[str, str]:
    """``helped``, ``reduced``, ``no effect`` or ``undecided``, and why.

    A contrast whose control repeats has no chance in it: none left is none left. Where identical
    runs differ by chance, none left counts only if that is unlikely under the rate before
    (Fisher, one-sided, ALPHA). Fewer differences by chance need more, as runs that are all compared
    with the first are not independent.
    """
    k0, n0, k1, n1 = before["k"], before["n"], after["k"], after["n"]
    if not n1:
        return "undecided", "nothing was compared before the time ran out"
    chance = kind in BY_CHANCE or before["control_k"] > 0
    p = fisher_greater(k0, n0, k1, n1)
    if k1 == 0 and after["control_k"] == 0:
        if not chance or p <= ALPHA:
            return "helped", ""
        return "undecided", f"0 of {n1} may be luck at the rate before (p = {p:.2g})"
    if k1 == 0:
        return "reduced", "identical runs still differ among themselves"
    if k1 < k0 * n1 / n0 and p <= (FEWER_BY_CHANCE if chance else 0.05):
        return "reduced", "fewer pairs differ"
    flips = fisher_greater(before["flips"], before["positions"], after["flips"], after["positions"])
    if before["flips"] and not after["flips"] and (not chance or flips <= FEWER_BY_CHANCE):
        return "reduced", "bits still differ, no arg-max token flips any more"
    small = before["max_abs_logit"] and after["max_abs_logit"] < before["max_abs_logit"] / 8
    if small:
        return "reduced", "the logits move less than an eighth as far"
    return "no effect", ""


def _costs(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if before.get("tokens_per_s") and after.get("tokens_per_s"):
        out["speed_ratio"] = round(after["tokens_per_s"] / before["tokens_per_s"], 3)
    if before.get("peak_memory_bytes") and after.get("peak_memory_bytes"):
        out["memory_delta_bytes"] = after["peak_memory_bytes"] - before["peak_memory_bytes"]
    return out


def _shown(counts: Mapping[str, Any]) -> dict[str, Any]:
    if "error" in counts:
        return {"error": counts["error"], "wall_s": round(counts.get("wall_s") or 0.0, 2)}
    out = {key: counts.get(key) for key in _COUNTS if counts.get(key) is not None}
    for key in ("tokens_per_s", "wall_s", "max_abs_logit", "max_ulp"):
        if key in out:
            out[key] = float(f"{out[key]:.4g}")
    ends = wilson(counts["k"], counts["n"])
    if ends is not None:
        out["ci95"] = [round(e, 4) for e in ends]
    return out


def _counted(counts: Mapping[str, Any]) -> str:
    return f"{counts['k']} of {counts['n']} pairs differ"
