"""The verdict in words: one sentence, what would change it, and the next-best experiment."""

from __future__ import annotations

from collections.abc import Sequence

from detdiag.evidence.case import Case, ProbeStatus
from detdiag.verdict.attribution import Attribution
from detdiag.verdict.causes import Cause
from detdiag.verdict.report_object import Next
from detdiag.verdict.stats import runs_for_bound, wilson, zero_bound
from detdiag.verdict.table import Bundle

ENOUGH_RUNS = 10
"""Observations of one query under one condition before identical answers count as clean."""


def percent(rate: float) -> str:
    return f"{100 * rate:.2g} %"


def interval(k: int, n: int) -> str:
    """``k of n [lo-hi %]`` with the 95 % Wilson interval."""
    bounds = wilson(k, n)
    if bounds is None:
        return f"{k} of {n}"
    return f"{k} of {n} [{100 * bounds[0]:.0f}-{100 * bounds[1]:.0f} %]"


def attributed_sentence(found: Attribution, main: Cause) -> str:
    text = f"Likeliest layer: {main.layer} ({main.confidence}): {main.finding.summary.rstrip('.')}"
    text += f"{_counts(main)}."
    if found.analysis.divergence == "bitwise":
        text += " The difference is in the bits only: no token flipped."
    others = [c for c in found.causes[1:] if c.layer != main.layer]
    if others:
        text += " Also: " + ", ".join(f"{c.layer} ({c.confidence})" for c in others) + "."
    return text


def _counts(main: Cause) -> str:
    """The contrast behind a mechanism, unless the summary is the contrast itself."""
    if not main.finding.mechanism or not main.contrasts:
        return ""
    best = min(main.contrasts, key=lambda c: c.p)
    unit = "matched pairs" if best.mode == "location" else "runs"
    return (
        f" ({best.k} of {best.n} {unit} change with {best.bundle.label}, control "
        f"{best.control_k} of {best.control_n})"
    )


def clean_sentence(n: int, conditions: int) -> str:
    plural = "s" if conditions != 1 else ""
    return (
        f"No difference seen: {n} runs of one prompt under identical conditions agree "
        f"({conditions} condition{plural} in all), which bounds the rate of change per run at "
        f"{percent(zero_bound(n))} (95 %)."
    )


def too_few_sentence(n: int) -> str:
    if not n:
        return "Inconclusive: no outputs are recorded, so there is nothing to compare."
    if n == 1:
        return (
            "Inconclusive: no two runs answer the same request under the same conditions, so "
            f"nothing can be compared; {ENOUGH_RUNS} are needed before that says anything."
        )
    return (
        f"Inconclusive: the {n} runs under identical conditions agree, but "
        f"at least {ENOUGH_RUNS} are needed before that says anything; {n} still allow a rate of "
        f"change of {percent(zero_bound(max(n, 1)))}."
    )


def unfinished(case: Case) -> list[ProbeStatus]:
    """Probes whose failure to finish leaves "no difference seen" without weight: a crash, or a
    batch sweep that was cut off before every size that was asked for."""
    asked = {n for n in case.method.get("batch_sizes", ()) if n != 1}
    ran = {o.factors.get("batch_size") for o in case.observations if o.role == "trial"}
    return [
        p
        for p in case.probes
        if p.state == "error"
        or (p.state == "out_of_budget" and p.layer == "batch" and not asked <= ran)
    ]


def unfinished_sentence(n: int, probes: Sequence[ProbeStatus]) -> str:
    what = "; ".join(
        f"{p.layer} {'crashed' if p.state == 'error' else 'ran out of budget'}" for p in probes
    )
    return (
        f"Inconclusive: {n} identical runs agree, but not everything asked for was tested ({what})."
    )


def unfinished_step(case: Case, probes: Sequence[ProbeStatus]) -> Next:
    """Rerun with more time, or with the trace of the crash."""
    first = probes[0]
    command = str(case.method.get("command") or "detdiag run")
    if first.state == "error":
        return Next(
            f"the {first.layer} probe crashed: {first.reason}", f"DETDIAG_DEBUG=1 {command}"
        )
    budget = case.method.get("budget_s")
    more = f"{3 * float(budget):.0f}s" if isinstance(budget, (int, float)) else "10m"
    return Next(f"{first.layer}: {first.reason}", f"{command} --budget {more}")


def inconclusive_sentence(found: Attribution) -> str:
    if found.confounded:
        names = " and ".join(b.label for b in found.confounded[0])
        return (
            f"Inconclusive: the answers differ only where {names} change together, so neither "
            "can be named."
        )
    unknown = [c for c in found.weak if c.bundle.layer == "unknown"]
    if unknown:
        c = unknown[0]
        return (
            f"Inconclusive: the answer changes with {c.bundle.label} ({c.k} of {c.n} matched "
            "pairs), a factor that belongs to no known layer."
        )
    if found.weak:
        c = found.weak[0]
        return (
            f"Inconclusive: {c.k} of {c.n} matched pairs change with {c.bundle.label}, but too few "
            f"repeats support it (p = {c.p_holm:.2g}; control {c.control_k} of {c.control_n})."
        )
    a = found.analysis
    if a.control_k and found.held is not None and found.held.missing:
        return (
            f"Inconclusive: {interval(a.control_k, a.control_n)} identical repeats differ, and "
            f"the record does not say {', '.join(found.held.missing)}; any of them could "
            "explain it."
        )
    if a.control_k:
        return (
            f"Inconclusive: {interval(a.control_k, a.control_n)} identical repeats differ, and no "
            "recorded condition goes with it."
        )
    return (
        "Inconclusive: answers differ, but no condition was repeated, so chance cannot be told "
        "from cause."
    )


def next_steps(case: Case, found: Attribution | None, largest: int) -> tuple[Next, ...]:
    """The cheapest observations that would settle an open case."""
    if found is None:
        return (
            Next(
                f"repeat one prompt {ENOUGH_RUNS} times under one condition",
                _repeat_command(case, ENOUGH_RUNS),
            ),
        )
    steps = [_separate(found, bundles) for bundles in found.confounded[:2]]
    for contrast in found.weak[:2]:
        if contrast.bundle.layer == "unknown":
            name = contrast.bundle.factors[0]
            steps.append(
                Next(
                    f"say which layer {name} belongs to",
                    f"detdiag run --case DIR --factor-layer {name}=LAYER",
                )
            )
            continue
        arms = " and ".join(a.replace('"', "")[:40] for a in contrast.arms[:2])
        steps.append(
            Next(
                f"{contrast.bundle.label} at {arms}: at least 5 repeats an arm on the same prompt "
                "(5 against 5 is the smallest split with p below 0.01)",
                "add the observations to observations.jsonl, then detdiag run --case DIR",
            )
        )
    if not steps and found.held is not None and found.held.missing:
        steps.append(
            Next(
                f"record {', '.join(found.held.missing)} with each run, or pin them, and repeat",
                "add the factors to observations.jsonl, then detdiag run --case DIR",
            )
        )
    if not steps:
        steps.append(
            Next(
                f"repeat each condition at least {ENOUGH_RUNS} times",
                _repeat_command(case, max(ENOUGH_RUNS, 2 * largest)),
            )
        )
    return tuple(steps)


def _separate(found: Attribution, bundles: Sequence[Bundle]) -> Next:
    """The one missing cell: the first bundle of one known condition, the rest of another."""
    frame = found.analysis.table.frame
    columns = [b.column for b in bundles]
    cells = frame[columns].drop_duplicates().sort_values(columns)
    one, other = cells.iloc[0], cells.iloc[-1]
    first = f"{bundles[0].label} {_plain(one[columns[0]])}"
    rest = " and ".join(
        f"{b.label} {_plain(other[c])}" for b, c in zip(bundles[1:], columns[1:], strict=True)
    )
    names = " and ".join(b.label for b in bundles)
    return Next(
        f"one condition that was never run separates {names}: {first} with {rest}",
        f"record it with {ENOUGH_RUNS // 2} repeats in observations.jsonl, then "
        "detdiag run --case DIR",
    )


def _plain(value: object) -> str:
    return str(value).replace('"', "")[:60]


def _repeat_command(case: Case, n: int) -> str:
    name = case.target.get("name")
    if case.target.get("kind") == "local" and name:
        return f"detdiag run --model {name} --repeats {n}"
    return "add the observations to observations.jsonl, then detdiag run --case DIR"


def would_change(main: Cause | None, largest: int) -> str:
    """What observation would overturn the verdict."""
    if main is None:
        needed = runs_for_bound(0.01)
        return f"One differing repeat would; {needed} equal ones would bound the rate at 1 %."
    if main.contrasts:
        name = main.contrasts[0].bundle.label
        return (
            f"A difference that stays when {name} is held fixed, or repeats that differ under "
            "one condition."
        )
    if main.rule == "operator.not-repeatable":
        return "A recorded condition that makes the repeats agree."
    return "The same difference with this finding fixed."
