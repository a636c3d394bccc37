"""The verdict of a case without observations: findings of files alone."""

from __future__ import annotations

from detdiag.evidence.case import Case
from detdiag.evidence.finding import Finding
from detdiag.layers import LAYERS, Layer, layer_rank
from detdiag.verdict.remedies import next_after, with_remedy
from detdiag.verdict.report_object import (
    Also,
    Attribution,
    Confidence,
    LayerReport,
    Next,
    Report,
    Verdict,
    cut,
    method_of,
)

_SEVERITY = ("high", "medium", "low", "info")


def decide_static(case: Case) -> Report:
    """Attribute from failed static findings; "inconclusive" where there are none, because files
    alone cannot show that a model repeats."""
    failed = sorted(
        (with_remedy(f) for f in case.findings if f.outcome == "failed"),
        key=lambda f: (layer_rank(f.layer), _SEVERITY.index(f.severity)),
    )
    named = [] if case.target.get("kind") == "endpoint" else failed
    layers = tuple(_layer(layer, case, named) for layer in LAYERS)
    data = {**case.series, "ladder": []}
    return Report(
        _verdict(case, failed, layers), layers, case.margins, 0, case.target, case.fingerprint,
        method_of(case), data,
    )  # fmt: skip


def _verdict(case: Case, failed: list[Finding], layers: tuple[LayerReport, ...]) -> Verdict:
    ruled_out = tuple(r.layer for r in layers if r.attribution == "ruled_out")
    untested = tuple(r.layer for r in layers if r.attribution == "untested")
    if case.target.get("kind") == "endpoint":
        return _no_reply(case, failed, ruled_out, untested)
    without_answers = case.method.get("without_answers")
    if not failed and without_answers:
        return _no_answers("; ".join(without_answers), ruled_out, untested)
    if not failed:
        return Verdict(
            "inconclusive",
            "Inconclusive: the files show nothing that explains a change, and no run was recorded.",
            ruled_out=ruled_out,
            untested=untested,
            would_change="Observations: ten repeats of one prompt under one condition.",
            next=(
                Next(
                    "record ten repeats of one prompt under one condition",
                    "write them to observations.jsonl, then detdiag run --case DIR",
                ),
            ),
        )
    main = failed[0]
    also = {f.layer: f for f in reversed(failed) if f.layer != main.layer}
    return Verdict(
        "attributed",
        f"Likeliest layer: {main.layer} ({_confidence(main)}): {main.summary.rstrip('.')}.",
        main.layer,
        main.rule,
        _confidence(main),
        also=tuple(
            Also(f.layer, f.rule, _confidence(f))
            for f in sorted(also.values(), key=lambda f: layer_rank(f.layer))
        ),
        ruled_out=ruled_out,
        untested=untested,
        first_divergence=main.locus,
        would_change="Runs that differ in the same way with this finding fixed.",
        next=next_after(main),
    )


def _no_reply(
    case: Case,
    failed: list[Finding],
    ruled_out: tuple[Layer, ...],
    untested: tuple[Layer, ...],
) -> Verdict:
    """A server that never gave a reply to compare: what its request lacks is no cause of
    differences that nobody saw, and stays advice."""
    stopped = next((f.summary for f in case.findings if f.rule == "config.calls-stopped"), "")
    command = str(case.method.get("command") or "detdiag run --endpoint URL --model-name M")
    return Verdict(
        "inconclusive",
        "Inconclusive: the server gave no reply to compare"
        + (f" ({stopped})." if stopped else "."),
        ruled_out=ruled_out,
        untested=untested,
        would_change="Ten replies to one request.",
        next=(
            Next("try again when the server answers", command),
            *(step for finding in failed[:1] for step in next_after(finding)),
        ),
    )


def _no_answers(logs: str, ruled_out: tuple[Layer, ...], untested: tuple[Layer, ...]) -> Verdict:
    """Logs of known formats that keep calls and not one answer."""
    return Verdict(
        "inconclusive",
        f"Inconclusive: the logs hold no answer that could be compared: {logs}.",
        ruled_out=ruled_out,
        untested=untested,
        would_change="The same log with the text of requests and answers.",
        next=(
            Next(
                "record the content of requests and answers",
                "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true (OpenTelemetry), "
                "--include-body (Helicone), --trace-ascii FILE (curl)",
            ),
        ),
    )


def _confidence(finding: Finding) -> Confidence:
    return "confirmed" if finding.proven else "likely"


def _layer(layer: Layer, case: Case, failed: list[Finding]) -> LayerReport:
    findings = tuple(
        sorted(
            (with_remedy(f) for f in case.findings if f.layer == layer),
            key=lambda f: (f.outcome != "failed", _SEVERITY.index(f.severity)),
        )
    )
    role: Attribution = "untested"
    if any(f.layer == layer for f in failed):
        return LayerReport(layer, "failed", "cause", cut(findings[0].summary), findings)
    if findings and all(f.outcome == "passed" for f in findings):
        role = "ruled_out"
        return LayerReport(layer, "passed", role, cut(findings[0].summary), findings)
    if findings:
        return LayerReport(
            layer, "inconclusive", "inconclusive", cut(findings[0].summary), findings
        )
    status = next((p for p in case.probes if p.layer == layer), None)
    reason = status.reason if status is not None else "no evidence of this layer was given"
    return LayerReport(layer, "skipped", role, reason, (), reason)
