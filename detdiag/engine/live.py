"""A live diagnosis of a local model: load, walk, read the record back, decide."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detdiag import __version__
from detdiag.engine.progress import progress_for
from detdiag.engine.record_path import default_record, kept_on_interrupt
from detdiag.engine.walk import Selection, finished_layers, walk
from detdiag.errors import DetdiagError
from detdiag.evidence.case import Case
from detdiag.evidence.record import RecordWriter, read_record
from detdiag.probes.interface import Plan
from detdiag.targets.local import LocalTarget

IDENTITY = ("weights_digest", "tokenizer_digest")
"""Fingerprint fields that must agree before a record may be continued."""


__all__ = ["LiveRun", "default_record", "diagnose"]


@dataclass(frozen=True, slots=True)
class LiveRun:
    """Everything one live run needs."""

    target: LocalTarget
    plan: Plan
    record_path: Path
    command: str
    selection: Selection = field(default_factory=Selection)
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    resume: bool = False
    quiet: bool = False
    scratch: Mapping[str, object] = field(default_factory=dict)


def diagnose(run: LiveRun) -> Case:
    """Walk the layers; the case is what the record says."""
    selection = run.selection
    if run.resume:
        earlier = read_record(run.record_path)
        _same_model(earlier, run)
        selection = Selection(selection.only, selection.skip, finished_layers(earlier))
    progress = progress_for(run.quiet, run.plan.budget_s)
    with (
        kept_on_interrupt(run.record_path, run.command),
        closing(progress),
        RecordWriter(run.record_path, _header(run), append=run.resume) as record,
    ):
        walk(
            run.target, run.plan, record, progress, selection,
            {**run.scratch, "fingerprint": run.fingerprint},
        )  # fmt: skip
    return read_record(run.record_path)


def _header(run: LiveRun) -> dict[str, Any]:
    plan, target = run.plan, run.target
    return {
        "tool": {"name": "detdiag", "version": __version__},
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "target": {
            "kind": "local",
            "name": target.name,
            "device": target.device,
            "dtype": target.dtype,
            "prompts": len(target.prompts),
        },
        "fingerprint": dict(run.fingerprint),
        "method": {
            "conditions": f"batch sizes {', '.join(map(str, plan.batch_sizes))}",
            "batch_sizes": list(plan.batch_sizes),
            "repeats": plan.repeats,
            "max_new_tokens": plan.max_new_tokens,
            "budget_s": plan.budget_s,
            "seed": plan.seed,
            "command": run.command,
            "limits": _limits(run),
        },
    }


def _limits(run: LiveRun) -> list[str]:
    """Kernels that split one long context among blocks or threads do so from some length on."""
    longest = max((len(run.target.encode(p)) for p in run.target.prompts), default=0)
    return [
        f"prompts of up to {longest} tokens and {run.plan.max_new_tokens} generated ones were "
        "tried; longer contexts may meet other kernels"
    ]


def _same_model(earlier: Case, run: LiveRun) -> None:
    for name in IDENTITY:
        before, now = earlier.fingerprint.get(name), run.fingerprint.get(name)
        if before != now:
            raise DetdiagError(
                f"cannot resume: {name} was {before} and is {now} now",
                path=run.record_path,
                tip="start a new record for another model",
            )
