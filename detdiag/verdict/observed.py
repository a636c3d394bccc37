"""Put the attribution of an observed case into the report object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from detdiag.evidence.case import Case
from detdiag.evidence.finding import Locus
from detdiag.evidence.observation import Observation
from detdiag.layers import Layer
from detdiag.verdict.attribute import attribute
from detdiag.verdict.attribution import Attribution
from detdiag.verdict.causes import Cause, first_locus
from detdiag.verdict.figures import figure_tables
from detdiag.verdict.layer_reports import layer_reports
from detdiag.verdict.remedies import next_after, with_remedy
from detdiag.verdict.report_object import Also, LayerReport, Report, Verdict, method_of
from detdiag.verdict.wording import (
    ENOUGH_RUNS,
    attributed_sentence,
    clean_sentence,
    inconclusive_sentence,
    next_steps,
    too_few_sentence,
    unfinished,
    unfinished_sentence,
    unfinished_step,
    would_change,
)


def decide_observed(case: Case, trials: Sequence[Observation]) -> Report:
    """The report of a case with at least one trial."""
    found = attribute(case, trials)
    layers = layer_reports(case, found, [with_remedy(c.finding) for c in found.causes])
    verdict = _verdict(case, found, layers)
    data: dict[str, Any] = {
        **figure_tables(case, found, verdict.status),
        "repeatability": {"runs": found.analysis.largest},
        **case.series,
    }
    return Report(
        verdict,
        layers,
        case.margins,
        len(case.observations),
        case.target,
        case.fingerprint,
        method_of(case),
        data,
    )


def _verdict(case: Case, found: Attribution, layers: tuple[LayerReport, ...]) -> Verdict:
    ruled_out = tuple(r.layer for r in layers if r.attribution == "ruled_out")
    untested = tuple(r.layer for r in layers if r.attribution == "untested")
    largest = found.analysis.largest
    common: dict[str, Any] = {
        "divergence": found.analysis.divergence,
        "ruled_out": ruled_out,
        "untested": untested,
    }
    if found.causes:
        main = found.causes[0]
        return Verdict(
            "attributed",
            attributed_sentence(found, main),
            main.layer,
            main.rule,
            main.confidence,
            also=_also(found.causes),
            first_divergence=first_locus(found.causes) or _first_fork(found),
            would_change=would_change(main, largest),
            next=next_after(main.finding),
            **common,
        )
    if found.open is not None:
        return Verdict(
            "inconclusive",
            found.open.sentence,
            confounded=found.open.confounded,
            would_change="The observation named under next.",
            next=found.open.next,
            **common,
        )
    if found.analysis.divergence == "none":
        open_probes = unfinished(case)
        if open_probes:
            return Verdict(
                "inconclusive",
                unfinished_sentence(largest, open_probes),
                would_change="The probes that did not finish.",
                next=(unfinished_step(case, open_probes),),
                **common,
            )
        if largest >= ENOUGH_RUNS:
            conditions = len(found.analysis.controls)
            return Verdict(
                "clean",
                clean_sentence(largest, conditions),
                would_change=would_change(None, largest),
                next=found.further,
                **common,
            )
        return Verdict(
            "inconclusive",
            too_few_sentence(largest),
            would_change=would_change(None, largest),
            next=next_steps(case, None, largest),
            **common,
        )
    return Verdict(
        "inconclusive",
        inconclusive_sentence(found),
        confounded=tuple(f for s in found.confounded[:1] for b in s for f in b.factors),
        would_change="The observation named under next.",
        next=next_steps(case, found, largest),
        **common,
    )


def _also(causes: Sequence[Cause]) -> tuple[Also, ...]:
    seen: set[Layer] = {causes[0].layer}
    out = []
    for cause in causes[1:]:
        if cause.layer not in seen:
            seen.add(cause.layer)
            out.append(Also(cause.layer, cause.rule, cause.confidence))
    return tuple(out)


def _first_fork(found: Attribution) -> Locus | None:
    """Earliest token at which two observations of one query part."""
    from detdiag.verdict.outcome import compare

    table = found.analysis.table
    best: Locus | None = None
    for query, rows in table.frame[table.frame["bits"] >= 0].groupby("query", sort=True):
        firsts = list(rows.drop_duplicates(["bits", "bits_channels"])["observation"])[:20]
        for other in firsts[1:]:
            fork = compare(
                table.observations[firsts[0]].output, table.observations[other].output
            ).fork
            if fork is not None and (best is None or fork < (best.token or 0)):
                best = Locus(query=str(query), token=fork)
    return best
