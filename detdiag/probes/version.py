"""Is it the model and the stack that were signed off? Compared with a baseline fingerprint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.finding import Evidence, Finding
from detdiag.evidence.record import Event
from detdiag.fingerprint.collect import fingerprint
from detdiag.fingerprint.diff import diff_fingerprints
from detdiag.fingerprint.environment import torch_runtime
from detdiag.fingerprint.findings import fingerprint_findings
from detdiag.layers import Layer
from detdiag.probes.interface import ProbeContext


class VersionProbe:
    """Fingerprints the target's folder and reports every difference to ``plan.baseline``."""

    layer: ClassVar[Layer] = "version"

    def run(self, context: ProbeContext) -> Iterator[Event]:
        facts = current_fingerprint(context)
        yield ("fingerprint", without_tensors(facts))
        baseline = context.plan.baseline
        if baseline is None:
            yield ProbeStatus(
                "version", "skipped", "no baseline fingerprint was given (--baseline)"
            )
            return
        if not _comparable(baseline, facts):
            yield Finding(
                "version",
                "version.fingerprint-equal",
                "inconclusive",
                "the baseline and this run record no fact in common: nothing could be compared",
                severity="low",
            )
            yield ProbeStatus("version", "done")
            return
        rows = diff_fingerprints(baseline, facts)
        if rows:
            yield ("fingerprint_diff", [row.to_dict() for row in rows])
        names = ("the baseline", "this run")
        yield from fingerprint_findings(baseline, facts, mechanism=True, names=names)
        yield from _weights_unchecked(baseline, facts)
        yield ProbeStatus("version", "done")


def current_fingerprint(context: ProbeContext) -> dict[str, Any]:
    """The run's own fingerprint if the engine took one, else taken now, with torch's facts."""
    held = context.scratch.get("fingerprint")
    if isinstance(held, Mapping) and held:
        facts = dict(held)
    else:
        facts = fingerprint(context.target.path)
        context.scratch["fingerprint"] = facts
    return facts | torch_runtime()


def without_tensors(facts: Mapping[str, Any]) -> dict[str, Any]:
    """For the record: everything but the per-tensor table, which can be thousands of rows."""
    weights = facts.get("weights")
    if not isinstance(weights, Mapping):
        return dict(facts)
    return {**facts, "weights": {k: v for k, v in weights.items() if k != "tensors"}}


def _comparable(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return bool((a.keys() & b.keys()) - {"schema", "created"})


def _weights_unchecked(baseline: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Weights that one side did not record are not vouched for by facts that agree."""
    missing = [
        name
        for name, side in (("the baseline", baseline), ("this run", facts))
        if "weights_digest" not in side
    ]
    if missing:
        yield Finding(
            "version",
            "version.weights-changed",
            "inconclusive",
            f"weights were not compared: {' and '.join(missing)} recorded no weights_digest",
            severity="low",
            evidence=(Evidence("sides without a weights digest", len(missing), 2),),
        )
