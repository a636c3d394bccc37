"""What each switch does to bits, margins, repeatability and speed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from detdiag.evidence.finding import Evidence, Finding, Remedy
from detdiag.evidence.record import Event
from detdiag.probes._compare import difference, interval95
from detdiag.probes.child import ChildResult, run_child
from detdiag.probes.conditions import base_condition
from detdiag.probes.interface import ProbeContext
from detdiag.probes.runs import Reference, Run, bench, forced_observation, run_padded
from detdiag.probes.stabiliser import differing
from detdiag.probes.toggles import Toggle, toggles_for
from detdiag.targets.padding import Padded
from detdiag.verdict.stats import fisher_greater

STABLE_RUNS = 2
UNSTABLE_RUNS = 21
CURE_ALPHA = 0.001
"""One-sided level at which a switch counts as a cure: 0.01 over about ten switches."""


def toggle_events(
    context: ProbeContext, ref: Reference, base_counts: tuple[int, int], left: list[str]
) -> Iterator[Event]:
    """Each switch alone: observations (interventions), a remedy where one cures, the table."""
    target = context.target
    batch = target.pad(base_condition(ref).rows)
    base = bench(context).base.get(ref.query) or [run_padded(target, batch, ref.start)[0]]
    rows: list[dict[str, Any]] = []
    curable = base_counts[0] > 0 and _by_kernel(context)
    for toggle in toggles_for(target):
        times = UNSTABLE_RUNS if curable else STABLE_RUNS
        if context.remaining_s() < bench(context).clock.forward_s(1, len(ref.row), times + 1):
            left.append(f"switch {toggle.name}={toggle.value}")
            continue
        runs, error = _switched(context, toggle, batch, ref, times)
        row = _row(toggle, base, runs, error)
        row.update(_batch_effect(context, toggle, ref, runs))
        rows.append(row)
        yield from _observations(context, ref, toggle, runs)
        if runs and curable and not differing(runs):
            yield from _cure(toggle, base_counts, row)
    if not base_counts[0]:
        rows += _processes(context, ref, base[0], left)
    yield ("toggles", rows)


def _switched(
    context: ProbeContext, toggle: Toggle, batch: Padded, ref: Reference, times: int
) -> tuple[list[Run], str | None]:
    """A warm-up and ``times`` runs under the switch; the error text where an operator refuses."""
    try:
        with toggle.switch(context.target):
            run_padded(context.target, batch, ref.start)
            return [run_padded(context.target, batch, ref.start)[0] for _ in range(times)], None
    except (RuntimeError, ValueError, ImportError, NotImplementedError) as error:
        text = str(error).strip().splitlines()
        return [], text[0][:200] if text else type(error).__name__


def _row(toggle: Toggle, base: list[Run], runs: list[Run], error: str | None) -> dict[str, Any]:
    row: dict[str, Any] = {"toggle": toggle.name, "value": toggle.value, "setting": toggle.remedy}
    if not runs:
        return {**row, "bit_equal": None, "note": f"not possible: {error}"}
    d = difference(base[0].logits, runs[0].logits)
    seconds = min(run.wall_s for run in runs)
    return {
        **row,
        "bit_equal": d.bit_equal,
        "max_abs_logit": d.max_abs,
        "max_ulp": d.max_ulp,
        "flips": d.flips,
        "n": d.positions,
        "control_k": differing(runs),
        "control_n": len(runs) - 1,
        "seconds": round(seconds, 4),
        "speed_ratio": round(seconds / max(min(run.wall_s for run in base), 1e-9), 3),
    }


def _batch_effect(
    context: ProbeContext, toggle: Toggle, ref: Reference, runs: list[Run]
) -> dict[str, Any]:
    """Where a batch size changed bits: does it still under this switch?"""
    condition = context.scratch.get("batch_case")
    if condition is None or not runs or differing(runs):
        return {}
    if context.remaining_s() < 2 * bench(context).clock.forward_s(1, condition.tokens):
        return {}
    batch = context.target.pad(condition.rows)
    batched, _ = _switched(context, toggle, batch, ref, 1)
    if not batched:
        return {}
    d = difference(runs[0].logits, batched[0].logits)
    return {
        "batch_size": len(condition.rows),
        "batch_bit_equal": d.bit_equal,
        "batch_max_abs_logit": d.max_abs,
        "batch_flips": d.flips,
    }


def _observations(
    context: ProbeContext, ref: Reference, toggle: Toggle, runs: list[Run]
) -> Iterator[Event]:
    for repeat, run in enumerate(runs):
        yield forced_observation(
            bench(context).next_id("switch"),
            ref,
            run,
            {
                **base_condition(ref).factors(0, repeat),
                toggle.factor: f"{toggle.name}={toggle.value}",
            },
            context.target.tokenizer,
            role="intervention",
        )


def _by_kernel(context: ProbeContext) -> bool:
    """Could a switch help? Random draws and carried state have a known cause that none touches."""
    known = context.scratch.get("stabiliser")
    return all(s.kind == "race" for s in known.sources) if known is not None else True


def _cure(toggle: Toggle, base_counts: tuple[int, int], row: dict[str, Any]) -> Iterator[Finding]:
    """A switch under which nothing differs, where that is no accident (Fisher, CURE_ALPHA)."""
    k, n = base_counts
    if fisher_greater(k, n, 0, row["control_n"]) > CURE_ALPHA:
        return
    yield Finding(
        layer="operator",
        rule="operator.switch-cures",
        outcome="passed",
        severity="info",
        subject=toggle.factor,
        summary=(
            f"with {toggle.name}={toggle.value} 0 of {row['control_n']} reruns differ, "
            f"without it {k} of {n}"
        ),
        evidence=(
            Evidence("reruns that differ as is", k, n, "reruns", interval95(k, n)),
            Evidence(
                f"reruns that differ with {toggle.name}={toggle.value}",
                0,
                row["control_n"],
                "reruns",
                interval95(0, row["control_n"]),
            ),
        ),
        remedy=Remedy(
            f"set {toggle.name}={toggle.value}",
            command=toggle.remedy,
            cost=f"{row['speed_ratio']:.2f}x the time of a forward",
            verify="detdiag run --model MODEL --only operator",
        ),
    )


PROCESS_SWITCHES = {
    "cuda": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
    "cpu": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
}
"""Environment variables that a library reads once, at its first use in a process."""


def _processes(
    context: ProbeContext, ref: Reference, base: Run, left: list[str]
) -> list[dict[str, Any]]:
    """A fresh process as it is, then with a switch that only a fresh process reads."""
    target = context.target
    if target.path is None:
        left += [] if not target.load_args else ["fresh process"]
        return []
    kind = "cuda" if target.device.startswith("cuda") else "cpu"
    name, value = next(iter(PROCESS_SWITCHES[kind].items()))
    rows = []
    for toggle, shown, env in (("process", "fresh", {}), (name, value, {name: value})):
        cost = 2.0 * target.load_wall_s + 10.0
        if context.remaining_s() < cost:
            left.append(f"{toggle} in a fresh process")
            continue
        made = run_child(
            target.load_args,
            [ref.row],
            ref.start,
            env=env,
            timeout_s=context.remaining_s(),
        )
        rows.append(_process_row(toggle, shown, made, base))
    return rows


def _process_row(toggle: str, value: str, made: ChildResult, base: Run) -> dict[str, Any]:
    row: dict[str, Any] = {"toggle": toggle, "value": value, "fresh_process": True}
    if made.logits is None:
        return {**row, "bit_equal": None, "note": f"not possible: {made.error}"}
    d = difference(base.logits, made.logits)
    return {
        **row,
        "bit_equal": d.bit_equal,
        "max_abs_logit": d.max_abs,
        "max_ulp": d.max_ulp,
        "flips": d.flips,
        "n": d.positions,
        "control_k": sum(x != made.digests[0] for x in made.digests[1:]),
        "control_n": len(made.digests) - 1,
    }
