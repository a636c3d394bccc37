"""Walk the probes over one local target; every event goes to the record as it happens."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from detdiag.evidence.case import Case, ProbeStatus
from detdiag.evidence.record import Event, RecordWriter
from detdiag.layers import LAYERS, Layer
from detdiag.probes.interface import Plan, ProbeContext
from detdiag.probes.registry import BUDGET_SHARES, load_probe
from detdiag.targets.local import LocalTarget


class Progress(Protocol):
    """Hears what the walk is doing."""

    def started(self, layer: Layer, share_s: float) -> None: ...

    def event(self, layer: Layer, event: Event) -> None: ...

    def finished(self, status: ProbeStatus) -> None: ...


@dataclass(frozen=True, slots=True)
class Selection:
    """Layers to walk and layers that an earlier record has done."""

    only: Collection[str] = LAYERS
    skip: Collection[str] = ()
    done: Collection[str] = ()

    def reason_to_skip(self, layer: Layer) -> str | None:
        if layer in self.skip:
            return "skipped on request (--skip)"
        if layer not in self.only:
            return "not asked for (--only)"
        return None


def walk(
    target: LocalTarget,
    plan: Plan,
    record: RecordWriter,
    progress: Progress,
    selection: Selection | None = None,
    scratch: Mapping[str, object] | None = None,
) -> None:
    """Run the probes in the order of LAYERS within ``plan.budget_s`` wall seconds.

    An exception inside a probe becomes its status; only KeyboardInterrupt passes.
    """
    selection = selection or Selection()
    end = time.monotonic() + plan.budget_s
    shared = dict(scratch or {})
    waiting = [layer for layer in LAYERS if layer not in selection.done]
    for index, layer in enumerate(waiting):
        reason = selection.reason_to_skip(layer)
        if reason is not None:
            record.write(ProbeStatus(layer, "skipped", reason))
            continue
        rest = [other for other in waiting[index:] if selection.reason_to_skip(other) is None]
        share = BUDGET_SHARES[layer] / sum(BUDGET_SHARES[other] for other in rest)
        allowed = max(0.0, end - time.monotonic()) * share
        context = ProbeContext(target, plan, time.monotonic() + allowed, shared)
        progress.started(layer, allowed)
        status = _run_one(layer, context, record, progress)
        record.write(status)
        progress.finished(status)


def _run_one(
    layer: Layer, context: ProbeContext, record: RecordWriter, progress: Progress
) -> ProbeStatus:
    record.write_line({"type": "start", "layer": layer})
    started = time.monotonic()
    status: ProbeStatus | None = None
    try:
        for event in load_probe(layer).run(context):
            if isinstance(event, ProbeStatus):
                status = event
                continue
            record.write(event)
            progress.event(layer, event)
    except Exception as error:
        if os.environ.get("DETDIAG_DEBUG"):
            raise
        status = ProbeStatus(layer, "error", f"{type(error).__name__}: {_one_line(error)}")
    wall_s = round(time.monotonic() - started, 3)
    status = status or ProbeStatus(layer, "done")
    return ProbeStatus(status.layer, status.state, status.reason, wall_s)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def finished_layers(case: Case) -> tuple[str, ...]:
    """Layers that a record has finished; the others are walked again on resume."""
    return tuple(p.layer for p in case.probes if p.state in ("done", "not_applicable"))
