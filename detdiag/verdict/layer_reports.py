"""Seven layer reports: what each layer's evidence amounts to, untested ones said to be so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from detdiag.evidence.case import Case, ProbeStatus
from detdiag.evidence.finding import Evidence, Finding, FindingOutcome
from detdiag.layers import LAYER_QUESTIONS, LAYERS, Layer
from detdiag.verdict.attribution import Attribution
from detdiag.verdict.contrast_findings import contrast_finding
from detdiag.verdict.report_object import Attribution as Role
from detdiag.verdict.report_object import LayerReport, cut
from detdiag.verdict.stats import wilson


@dataclass(frozen=True, slots=True)
class _Shown:
    findings: tuple[Finding, ...]
    role: Role
    outcome: FindingOutcome
    reason: str = ""


def layer_reports(
    case: Case, found: Attribution | None, causes: Sequence[Finding]
) -> tuple[LayerReport, ...]:
    """One report a layer; ``causes`` are the findings that the verdict names."""
    return tuple(_layer_report(layer, case, found, causes) for layer in LAYERS)


def _layer_report(
    layer: Layer, case: Case, found: Attribution | None, causes: Sequence[Finding]
) -> LayerReport:
    status = next((p for p in case.probes if p.layer == layer), None)
    shown = _shown(layer, case, found, [f for f in causes if f.layer == layer], status)
    return LayerReport(
        layer, shown.outcome, shown.role, title(layer, shown), shown.findings, shown.reason
    )


def title(layer: Layer, shown: _Shown) -> str:
    """One line that says how the layer came out."""
    if shown.role == "cause":
        return cut(shown.findings[0].summary)
    if shown.role == "ruled_out":
        passed = next((f.summary for f in shown.findings if f.outcome == "passed"), "")
        return cut(passed) or "measured, and nothing changed the outcome"
    if shown.role == "untested":
        return shown.reason or f"not tested: {LAYER_QUESTIONS[layer]}"
    text = shown.findings[0].summary if shown.findings else shown.reason
    return cut(text) or "inconclusive"


def _shown(
    layer: Layer,
    case: Case,
    found: Attribution | None,
    causes: Sequence[Finding],
    status: ProbeStatus | None,
) -> _Shown:
    measured = measured_findings(layer, found)
    mine = [f for f in (found.findings if found is not None else case.findings) if f.layer == layer]
    static = tuple(f for f in mine if not any(_twins(f, c) for c in causes))
    findings = (*(_with_tables(c, mine) for c in causes), *measured, *static)
    if causes:
        return _Shown(findings, "cause", "failed")
    if found is not None and any(c.bundle.layer == layer for c in found.contributors):
        return _Shown(findings, "contributor", "inconclusive")
    if any(f.outcome == "failed" for f in static):
        return _Shown(findings, "inconclusive", "inconclusive")
    if found is not None and _open(layer, found):
        return _Shown(findings, "inconclusive", "inconclusive")
    return _quiet(findings, status, measured)


def _with_tables(cause: Finding, mine: Sequence[Finding]) -> Finding:
    """The cause with the tables and the place of a finding of the same rule that it stands for."""
    twin = next((f for f in mine if _twins(f, cause) and f is not cause), None)
    if twin is None:
        return cause
    data = {**twin.data, **cause.data}
    return replace(cause, data=data, where=cause.where or twin.where)


def _twins(finding: Finding, cause: Finding) -> bool:
    """One rule about one subject; a subject that only one of them names may be the other's."""
    subjects = {finding.subject, cause.subject} - {None}
    return finding.rule == cause.rule and len(subjects) < 2


def _open(layer: Layer, found: Attribution) -> bool:
    weak = any(c.bundle.layer == layer for c in found.weak)
    return weak or any(b.layer == layer for s in found.confounded for b in s)


def _quiet(
    findings: tuple[Finding, ...], status: ProbeStatus | None, measured: Sequence[Finding]
) -> _Shown:
    if status is not None and status.state == "error":
        return _Shown(findings, "untested", "error", status.reason)
    if status is not None and status.state == "not_applicable":
        return _Shown(findings, "untested", "not_applicable", status.reason)
    if measured or any(f.outcome == "passed" for f in findings):
        return _Shown(findings, "ruled_out", "passed", status.reason if status else "")
    reason = status.reason if status is not None and status.reason else ""
    outcome: FindingOutcome = (
        "inconclusive" if reason and status and status.state == "out_of_budget" else "skipped"
    )
    return _Shown(findings, "untested", outcome, reason)


def measured_findings(layer: Layer, found: Attribution | None) -> tuple[Finding, ...]:
    """Contrasts of this layer that did not change the outcome, and what else was ruled out."""
    if found is None:
        return ()
    out = []
    for contrast in found.analysis.contrasts:
        if contrast.bundle.layer != layer:
            continue
        if contrast.k == 0:
            out.append(_passed_contrast(layer, contrast.bundle.label, contrast.n, contrast.arms))
        elif contrast in found.contributors:
            finding = contrast_finding(contrast, found.analysis.table)
            out.append(_downgraded(finding))
    if layer == "input" and not any(f.layer == "input" for f in out):
        out.extend(_same_bytes(found))
    if layer == "operator" and not out and found.analysis.level == "bits":
        out.extend(_repeating(found))
    if layer == "decode" and found.forks_moved and not any(f.layer == "decode" for f in out):
        out.append(
            Finding(
                "decode", "decode.exact-tie", "passed",
                f"at {found.forks_moved} forks the log-probabilities had already moved, so the "
                "choice among equal values is not what differs",
                evidence=(Evidence("forks with moved log-probabilities", found.forks_moved),),
            )
        )  # fmt: skip
    return tuple(out)


def _passed_contrast(layer: Layer, label: str, n: int, arms: Sequence[str]) -> Finding:
    return Finding(
        layer, f"{layer}.contrast", "passed", f"0 of {n} matched pairs change with {label}",
        evidence=(
            Evidence(
                f"outcome changes with {label}", 0, n, "matched pairs", wilson(0, n),
                tuple(a[:80] for a in arms[:8]),
            ),
        ),
    )  # fmt: skip


def _downgraded(finding: Finding) -> Finding:
    return replace(
        finding,
        outcome="inconclusive",
        severity="medium",
        summary="lets the difference show, together with the named cause: " + finding.summary,
    )


def _same_bytes(found: Attribution) -> list[Finding]:
    table = found.analysis.table
    observations = table.observations
    varied = any(b.layer == "input" for b in table.bundles)
    carried = {"prompt_digest", "prompt_token_ids", "client"} & table.mediators.keys()
    recorded = "prompt_digest" in table.constant or all(
        o.request is not None or o.prompt_token_ids is not None for o in observations
    )
    if varied or carried or not recorded:
        return []
    n = len(observations)
    return [
        Finding(
            "input", "input.bytes-differ", "passed",
            f"the prompt is the same to the byte in all {n} observations of each query",
            evidence=(Evidence("observations with equal prompt bytes", n, n, "observations"),),
        )
    ]  # fmt: skip


def _repeating(found: Attribution) -> list[Finding]:
    k, n = found.analysis.control_k, found.analysis.control_n
    if k or n < 3:
        return []
    return [
        Finding(
            "operator", "operator.not-repeatable", "passed",
            f"identical conditions repeat: 0 of {n} pairs differ",
            evidence=(Evidence("identical conditions differ", 0, n, "pairs", wilson(0, n)),),
        )
    ]  # fmt: skip
