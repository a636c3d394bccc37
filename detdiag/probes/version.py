"""Is it the model and the stack that were signed off? Compared with a baseline fingerprint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.finding import Evidence, Finding
from detdiag.evidence.record import Event
from detdiag.fingerprint.behaviour import (
    behaviour_findings,
    ids_equal,
    loaded_behaviour,
    logits_equal,
)
from detdiag.fingerprint.collect import fingerprint
from detdiag.fingerprint.consequence import Effect
from detdiag.fingerprint.diff import diff_fingerprints
from detdiag.fingerprint.environment import torch_runtime
from detdiag.fingerprint.findings import fingerprint_findings
from detdiag.layers import Layer
from detdiag.probes.interface import ProbeContext

_HEAVY: Final = ("weights",)
"""Sections that the record's header holds already where the engine took the fingerprint."""


class VersionProbe:
    """Fingerprints the target's folder and reports every difference to ``plan.baseline``."""

    layer: ClassVar[Layer] = "version"

    def run(self, context: ProbeContext) -> Iterator[Event]:
        taken = bool(context.scratch.get("fingerprint"))
        facts = current_fingerprint(context) | tested_behaviour(context)
        yield ("fingerprint", {k: v for k, v in facts.items() if not taken or k not in _HEAVY})
        baseline = context.plan.baseline
        if baseline is None:
            yield ProbeStatus(
                "version", "skipped", "no baseline fingerprint was given (--baseline)"
            )
            return
        yield from _compared(baseline, facts)
        yield ProbeStatus("version", "done")


def _compared(baseline: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[Event]:
    if not _comparable(baseline, facts):
        yield Finding(
            "version",
            "version.fingerprint-equal",
            "inconclusive",
            "the baseline and this run record no fact in common: nothing could be compared",
            severity="low",
        )
        return
    rows = diff_fingerprints(baseline, facts)
    if rows:
        yield ("fingerprint_diff", [row.to_dict() for row in rows])
    excluded: list[Effect] = []
    if logits_equal(baseline, facts):
        excluded.append("bits")
    if ids_equal(baseline, facts):
        excluded.append("tokens")
    yield from fingerprint_findings(
        baseline,
        facts,
        mechanism=True,
        names=("the baseline", "this run"),
        without_consequence=excluded,
    )
    yield from behaviour_findings(baseline, facts, rows)
    yield from _weights_unchecked(baseline, facts)


def tested_behaviour(context: ProbeContext) -> dict[str, Any]:
    """Ids and logits of the fixed probes, as a baseline for later and against an earlier one."""
    try:
        return loaded_behaviour(context.target)
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError) as error:
        # A model that takes no plain ids still gets its files compared.
        context.scratch["version_note"] = str(error)[:200]
        return {}


def current_fingerprint(context: ProbeContext) -> dict[str, Any]:
    """The run's own fingerprint if the engine took one, else taken now, with torch's facts."""
    held = context.scratch.get("fingerprint")
    if isinstance(held, Mapping) and held:
        facts = dict(held)
    else:
        facts = fingerprint(context.target.path)
        context.scratch["fingerprint"] = facts
    return facts | torch_runtime()


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
