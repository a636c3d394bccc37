"""A live diagnosis of a server: explore, walk the phases, read the record back."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from detdiag.engine.endpoint_record import EndpointRun, capability_rows, facts_of, header
from detdiag.engine.phase_progress import PhaseProgress, progress_for
from detdiag.engine.record_path import kept_on_interrupt
from detdiag.errors import DetdiagError
from detdiag.evidence.case import Case, ProbeStatus
from detdiag.evidence.finding import Finding
from detdiag.evidence.record import Event, RecordWriter, read_record
from detdiag.layers import LAYERS, Layer
from detdiag.probes.endpoint import PHASES, EndpointContext, Phase
from detdiag.probes.endpoint.baseline import changed_facts
from detdiag.probes.endpoint.context import PhaseOver
from detdiag.targets.endpoint import EndpointError
from detdiag.verdict.endpoint.masking import masked

MOE_REASON: Final = "which experts answered cannot be seen from outside; run on the model's folder"
DONE: Final = "done"


@dataclass(slots=True)
class _Walk:
    run: EndpointRun
    record: RecordWriter
    progress: PhaseProgress
    rows: list[dict[str, Any]]
    earlier: Case | None
    stopped: str | None = None
    context: EndpointContext | None = None


def diagnose(run: EndpointRun) -> Case:
    """Walk the phases; the case is what the record says.

    Raises :class:`EndpointError` when the server does not answer at all; one that goes away later
    ends the walk, and the case says so. KeyboardInterrupt leaves the record as it is.
    """
    earlier = _earlier(run)
    progress = progress_for(run.quiet, run.plan.budget_s)
    with kept_on_interrupt(run.record_path, run.command), closing(progress):
        asyncio.run(_diagnose(run, progress, earlier))
    return read_record(run.record_path)


def _earlier(run: EndpointRun) -> Case | None:
    if not run.resume:
        return None
    earlier = read_record(run.record_path)
    before, now = earlier.target.get("model"), run.targets[0].model
    if earlier.target.get("kind") != "endpoint" or before != now:
        raise DetdiagError(
            f"cannot resume: the record is about {before!r}, not {now!r}",
            path=run.record_path,
            tip="start a new record for another target",
        )
    return earlier


async def _diagnose(run: EndpointRun, progress: PhaseProgress, earlier: Case | None) -> None:
    start = time.monotonic()
    try:
        progress.started("capabilities", run.plan.budget_s)
        await _explore(run)
        progress.finished("capabilities", "", time.monotonic() - start)
        with RecordWriter(run.record_path, header(run), append=run.resume) as record:
            rows = _finished_rows(earlier)
            walk = _Walk(run, record, progress, rows, earlier)
            record.write(("capabilities", capability_rows(run)))
            _compare_replicas(walk)
            await _phases(walk, start + run.plan.budget_s)
            _close(walk)
    finally:
        for target in run.targets:
            await target.client.aclose()


def _compare_replicas(walk: _Walk) -> None:
    """What the servers say about themselves, side by side."""
    facts = [facts_of(target.capabilities) for target in walk.run.targets]
    for number, other in enumerate(facts[1:], start=2):
        apart = [
            f"{name} is {facts[0][name]} on server 1 and {other[name]} on server {number}"
            for name in sorted(facts[0].keys() & other.keys())
            if facts[0][name] != other[name]
        ]
        if apart:
            walk.record.write(
                Finding(
                    "version", "version.replica-facts-differ", "inconclusive",
                    "; ".join(apart[:4]), "medium",
                )
            )  # fmt: skip


async def _explore(run: EndpointRun) -> None:
    """Capabilities of every server, within the budget."""
    for target in run.targets:
        try:
            async with asyncio.timeout(run.plan.budget_s):
                await target.explore(run.prompts[0])
        except TimeoutError as error:
            raise EndpointError(
                "timeout", f"no answer from {target.name} within {run.plan.budget_s:.0f} s"
            ) from error


def _finished_rows(earlier: Case | None) -> list[dict[str, Any]]:
    known = earlier.series.get("phases", []) if earlier is not None else []
    return [row for row in known if row.get("state") == DONE]


async def _phases(walk: _Walk, end: float) -> None:
    run = walk.run
    context = walk.context = _context(walk, end)
    if run.baseline is not None:
        _with_baseline(walk, context)
    waiting = [p for p in PHASES if not any(r["phase"] == p.name for r in walk.rows)]
    for index, phase in enumerate(waiting):
        reason = _not_wanted(run, phase) or _cached(context, phase)
        if reason is not None:
            _row(walk, phase, "skipped", reason, 0, 0.0)
            continue
        share = phase.share / sum(p.share for p in waiting[index:] if not _not_wanted(run, p))
        allowed = max(0.0, end - time.monotonic()) * share
        context.deadline = time.monotonic() + allowed
        walk.progress.started(phase.name, allowed)
        if not await _one_phase(walk, context, phase):
            break


async def _one_phase(walk: _Walk, context: EndpointContext, phase: Phase) -> bool:
    """Run one phase; False when the server is gone."""
    walk.record.write_line({"type": "start", "layer": f"phase:{phase.name}"})
    started, sent = time.monotonic(), context.target.client.limits.sent
    state, reason = DONE, ""
    try:
        reason = await phase.run(context) or ""
    except PhaseOver as error:
        state, reason = "cut short", str(error)
    except EndpointError as error:
        state, reason = "stopped", error.message
        walk.stopped = error.message
    except Exception as error:
        if os.environ.get("DETDIAG_DEBUG"):
            raise
        state, reason = "error", " ".join(f"{type(error).__name__}: {error}".split())[:300]
    requests = context.target.client.limits.sent - sent
    _row(walk, phase, state, reason, requests, time.monotonic() - started)
    return walk.stopped is None


def _row(walk: _Walk, phase: Phase, state: str, reason: str, requests: int, wall_s: float) -> None:
    walk.rows.append(
        {
            "phase": phase.name,
            "state": state,
            "reason": reason,
            "requests": requests,
            "seconds": round(wall_s, 2),
        }
    )
    walk.record.write(("phases", list(walk.rows)))
    walk.progress.finished(phase.name, reason if state != DONE else "", wall_s)


def _not_wanted(run: EndpointRun, phase: Phase) -> str | None:
    if not phase.layers:
        return None
    if all(layer in run.skip for layer in phase.layers):
        return "skipped on request (--skip)"
    if not any(layer in run.only for layer in phase.layers):
        return "not asked for (--only)"
    return None


def _cached(context: EndpointContext, phase: Phase) -> str | None:
    """Once most replies come from a response cache, more of them say nothing."""
    trials = [o for o in context.observations if o.role == "trial"]
    if not phase.layers or phase.name == "config" or not trials:
        return None
    hidden = masked(trials, context.observations)
    return "replies come from a response cache" if 2 * len(hidden.ids) > len(trials) else None


def _context(walk: _Walk, end: float) -> EndpointContext:
    run = walk.run

    def emit(event: Event) -> None:
        walk.record.write(event)
        walk.progress.event(event)

    earlier = walk.earlier
    session = int(earlier.method.get("sessions", 1)) + 1 if earlier is not None else 1
    kept = list(earlier.observations) if earlier is not None else []
    return EndpointContext(
        run.targets, run.prompts, run.plan, emit, random.Random(f"{run.plan.seed} {session}"),
        end, prefix="" if earlier is None else f"r{int(time.time()) % 100000}-",
        observations=kept, scratch=_looks_of(kept),
        session="now" if run.baseline is not None else None,
    )  # fmt: skip


def _looks_of(observations: list[Any]) -> dict[str, Any]:
    """Looks that a resumed record has already taken count in the correction for looking often."""
    looks = [int((o.response or {}).get("context", {}).get("look") or 0) for o in observations]
    return {"looks": max(looks, default=0)} if any(looks) else {}


def _with_baseline(walk: _Walk, context: EndpointContext) -> None:
    assert walk.run.baseline is not None
    walk.record.write_line({"type": "start", "layer": "phase:baseline"})
    for one in walk.run.baseline.observations:
        context.keep(one)
    facts = facts_of(walk.run.targets[0].capabilities)
    changed = changed_facts(walk.run.baseline.facts, facts)
    if changed is not None:
        walk.record.write(changed)


def _close(walk: _Walk) -> None:
    """Outcome of each layer, and what went wrong on the way."""
    if walk.stopped is not None:
        walk.record.write(
            Finding("config", "config.calls-stopped", "inconclusive", walk.stopped, "high")
        )
    failures = walk.context.failures if walk.context is not None else []
    if failures:
        walk.record.write(
            Finding(
                "config", "config.calls-failed", "not_applicable",
                f"{len(failures)} calls gave no answer and were left out: "
                + "; ".join(f"{n} x {why}" for why, n in Counter(failures).most_common(3)),
            )
        )  # fmt: skip
    retried = _retried(walk)
    if retried is not None:
        walk.record.write(retried)
    for layer in LAYERS:
        walk.record.write(_status(walk, layer))


def _retried(walk: _Walk) -> Finding | None:
    """How many replies came only after retries, and why; each reply says so itself, too."""
    kept = walk.context.observations if walk.context is not None else []
    tries = [(o.response or {}).get("context", {}).get("retries") or [] for o in kept]
    reasons = Counter(str(one.get("why")) for told in tries for one in told)
    if not reasons:
        return None
    return Finding(
        "config", "config.calls-retried", "not_applicable",
        f"{sum(map(bool, tries))} of {len(tries)} replies came after retries: "
        + "; ".join(f"{n} x {why}" for why, n in reasons.most_common(3)),
    )  # fmt: skip


def _status(walk: _Walk, layer: Layer) -> ProbeStatus:
    run = walk.run
    if layer in run.skip:
        return ProbeStatus(layer, "skipped", "skipped on request (--skip)")
    if layer not in run.only:
        return ProbeStatus(layer, "skipped", "not asked for (--only)")
    if layer == "moe":
        return ProbeStatus(layer, "skipped", MOE_REASON)
    if layer == "decode" and run.targets[0].top < 2:
        return ProbeStatus(
            layer, "skipped",
            "the server returns no alternatives, so equal logits cannot be told from moved ones",
        )  # fmt: skip
    if layer == "decode":
        return ProbeStatus(layer, DONE, "no two replies with equal log-probabilities part")
    mine = [r for r in walk.rows if any(p.name == r["phase"] and layer in p.layers for p in PHASES)]
    reasons = [str(r["reason"]) for r in mine if r["reason"]]
    state: Any = DONE if mine or layer in ("config", "input", "operator") else "skipped"
    if any(r["state"] == "error" for r in mine):
        state = "error"
    elif any(r["state"] == "cut short" and r["phase"] == "load" for r in mine):
        state = "out_of_budget"
    return ProbeStatus(layer, state, "; ".join(dict.fromkeys(reasons)))
