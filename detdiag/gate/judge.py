"""From a report to the checklist: one row a layer or failing rule, and the gate's own rows.

A row fails where a finding at level ``error`` is neither waived nor below ``fail-on``.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from detdiag.gate.baseline import Earlier
from detdiag.gate.decision import decide_gate
from detdiag.gate.levels import Level
from detdiag.gate.model import OPEN, Gate, Row
from detdiag.gate.settings import Settings
from detdiag.gate.waivers import Waiver, rule_names
from detdiag.layers import LAYERS, Layer
from detdiag.report.model import layer_state, mapping, rows
from detdiag.verdict.outcome import STRENGTH
from detdiag.verdict.stats import runs_for_bound, zero_bound

MEASURED: Final = frozenset({"batch", "operator", "decode", "moe"})
"""Layers whose findings are differences between runs: ``fail-on`` weighs them. What is read from
files (configuration, bytes, versions) is a fact that no output had to show."""
_ACCUSING: Final = frozenset({"high", "medium"})


@dataclass(slots=True)
class _Judgement:
    """What is gathered while the layers are judged."""

    settings: Settings
    report: Mapping[str, Any]
    today: datetime.date
    required: Sequence[str]
    place: str | None
    earlier: Earlier | None = None
    used: set[Waiver] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def judge(
    report: Mapping[str, Any],
    settings: Settings,
    *,
    today: datetime.date,
    required: Sequence[str],
    live: bool,
    earlier: Earlier | None = None,
) -> tuple[Gate, dict[str, Any]]:
    """``(gate, report)``: the report with levels and waivers on its findings and the gate in it.

    ``required`` names the layers that must be settled; ``live`` says that runs were compared;
    ``earlier`` is the baseline's report, where it is one.
    """
    state = _Judgement(settings, report, today, required, _place(settings), earlier)
    items: list[Row] = []
    layers: list[dict[str, Any]] = []
    for layer in LAYERS:
        raw = next((r for r in rows(report.get("layers")) if r.get("layer") == layer), None)
        if raw is None:
            continue
        judged, shown = _judge_layer(state, layer, raw)
        items += judged
        layers.append({**raw, "findings": shown})
    if live:
        items.append(_repeats_row(state))
    items += _expired_rows(state)
    _note_unused(state)
    if earlier is not None:
        state.notes += [f"gone since the baseline: {rule}" for rule in earlier.gone(report)]
    gate = decide_gate(report, settings, items, state.notes, live)
    return gate, {**report, "layers": layers, "gate": gate.to_dict()}


def _place(settings: Settings) -> str | None:
    """``detdiag.toml:4``: where the target is named, for findings that sit in no file."""
    if settings.file is None:
        return None
    for key in ("model", "endpoint", "case"):
        origin = settings.origin(key) or ""
        if origin.startswith(settings.file.name):
            return origin
    return f"{settings.file.name}:1"


def _judge_layer(
    state: _Judgement, layer: Layer, raw: Mapping[str, Any]
) -> tuple[list[Row], list[dict[str, Any]]]:
    shown = [_weighed(state, layer, raw, f) for f in rows(raw.get("findings"))]
    errors = [f for f in shown if f.get("level") == "error"]
    if errors:
        return [_finding_row(layer, f, layer in state.required) for f in errors], shown
    return [_layer_row(state, layer, raw, shown)], shown


def _weighed(
    state: _Judgement, layer: Layer, raw: Mapping[str, Any], finding: Mapping[str, Any]
) -> dict[str, Any]:
    """The finding with its level, why the level is what it is, and its waiver."""
    out = dict(finding)
    if not accuses(finding):
        return out
    level, why = _level(state, layer, raw, finding)
    out["level"] = level
    if why:
        out["level_because"] = why
    if state.earlier is not None and finding.get("outcome") == "failed":
        out["baseline_state"] = state.earlier.state(layer, finding)
    if level == "error":
        waiver = _waiver(state, [w for w in state.settings.waivers if w.covers(layer, finding)])
        if waiver is not None:
            out["waiver"] = waiver.to_dict(state.today)
    if not out.get("where") and state.place:
        out["where"] = state.place
    return out


def accuses(finding: Mapping[str, Any]) -> bool:
    """Does the finding point at something, certain or not?"""
    outcome, kind = finding.get("outcome"), finding.get("kind")
    if outcome == "failed":
        return True
    open_fault = kind not in (None, "ok") or finding.get("severity") in _ACCUSING
    return outcome == "inconclusive" and open_fault


def _level(
    state: _Judgement, layer: Layer, raw: Mapping[str, Any], finding: Mapping[str, Any]
) -> tuple[Level, str]:
    said = state.settings.rules.level_of(layer, rule_names(finding))
    if said is not None:
        return said[0], f"{said[0]} in {said[1]}"
    certain = finding.get("outcome") == "failed" and raw.get("attribution") == "cause"
    if not certain:
        return "warn", ""
    kind = _divergence(state, layer)
    fail_on = state.settings.get("fail-on", "bitwise")
    if layer in MEASURED and STRENGTH[kind] < STRENGTH[fail_on]:
        origin = state.settings.origin("fail-on")
        return "warn", f"{kind} only, and fail-on is {fail_on} ({origin})"
    return "error", ""


def _divergence(state: _Judgement, layer: Layer) -> str:
    """Strongest difference that goes with this layer; at least "bitwise", for something failed."""
    contrasts = rows(mapping(state.report.get("data")).get("contrasts"))
    mine = [str(c.get("divergence")) for c in contrasts if c.get("layer") == layer and c.get("k")]
    whole = str(mapping(state.report.get("verdict")).get("divergence") or "none")
    kinds = [k for k in (mine or [whole]) if k in STRENGTH and k != "none"]
    return max(kinds, key=lambda k: STRENGTH[k], default="bitwise")


def _waiver(state: _Judgement, fitting: Sequence[Waiver]) -> Waiver | None:
    """Of the waivers that fit, one that applies, else an expired one that would have."""
    state.used.update(fitting)
    return next((w for w in fitting if not w.expired(state.today)), next(iter(fitting), None))


def _finding_row(layer: Layer, finding: Mapping[str, Any], required: bool) -> Row:
    waiver = finding.get("waiver")
    waived = bool(waiver) and not mapping(waiver).get("expired")
    where = finding.get("where")
    since = {"new": " (new against the baseline)", "unchanged": " (also in the baseline)"}.get(
        str(finding.get("baseline_state")), ""
    )
    subject = f" ({finding['subject']})" if finding.get("subject") else ""
    rule = str(finding.get("rule"))
    name = rule if rule.startswith(f"{layer}.") else f"{layer}: {rule}"
    return Row(
        f"{name}{subject}",
        layer,
        required,
        "waived" if waived else "failed",
        str(finding.get("summary") or "") + since,
        waiver,
        rule,
        str(where) if where else None,
    )


def _layer_row(
    state: _Judgement, layer: Layer, raw: Mapping[str, Any], shown: Sequence[Mapping[str, Any]]
) -> Row:
    off = state.settings.rules.layer_off(layer)
    warned = [f for f in shown if f.get("level") == "warn"]
    ignored = [f for f in shown if f.get("level") == "off"]
    outcome = _layer_outcome(layer, raw, warned, ignored)
    evidence = _layer_evidence(raw, outcome, warned, ignored)
    row = Row(layer, layer, layer in state.required, outcome, evidence)
    if off is not None:
        return replace(row, required=False, evidence=f"off in {off}: {evidence}")
    if outcome in OPEN and row.required:
        waiver = _waiver(state, [w for w in state.settings.waivers if w.covers_layer(layer)])
        if waiver is not None:
            said = waiver.to_dict(state.today)
            row = replace(row, waiver=said)
            if not waiver.expired(state.today):
                row = replace(row, outcome="waived")
    return row


def _layer_outcome(
    layer: Layer,
    raw: Mapping[str, Any],
    warned: Sequence[Mapping[str, Any]],
    ignored: Sequence[Mapping[str, Any]],
) -> str:
    state = layer_state(raw)
    if state in ("error", "not_applicable"):
        return state
    if state == "ruled_out":
        return "warned" if warned else "passed"
    if state in ("cause", "contributor"):
        return "passed" if ignored and not warned else "warned"
    settled = layer not in MEASURED and (warned or ignored)
    if state == "inconclusive" and settled:
        # a file was read and judged: what is left open is a warning, not a missing test
        return "warned" if warned else "passed"
    if state == "inconclusive":
        return "inconclusive"
    return "inconclusive" if raw.get("outcome") == "inconclusive" else "skipped"


def _layer_evidence(
    raw: Mapping[str, Any],
    outcome: str,
    warned: Sequence[Mapping[str, Any]],
    ignored: Sequence[Mapping[str, Any]],
) -> str:
    if ignored and not warned:
        names = ", ".join(dict.fromkeys(str(f.get("rule")) for f in ignored))
        return f"{names} found, and {ignored[0].get('level_because')}"
    if not warned:
        title, reason = str(raw.get("title") or ""), str(raw.get("reason") or "")
        rest = f" ({reason})" if reason and reason != title and outcome == "passed" else ""
        return (title or reason) + rest
    first = warned[0]
    because = f" ({first['level_because']})" if first.get("level_because") else ""
    more = f" (and {len(warned) - 1} more)" if len(warned) > 1 else ""
    return f"{first.get('rule')}: {first.get('summary')}{because}{more}"


def _repeats_row(state: _Judgement) -> Row:
    """Were there enough equal runs of one condition for the bound that is asked for?"""
    settings, verdict = state.settings, mapping(state.report.get("verdict"))
    data = mapping(state.report.get("data"))
    n = int(mapping(data.get("repeatability")).get("runs") or 0)
    bound, confidence = settings.get("bound", 1.0), settings.get("confidence", 0.95)
    needed = runs_for_bound(bound, confidence) if bound < 1 else 1
    divergence = str(verdict.get("divergence") or "none")
    differing = sum(int(c.get("k") or 0) for c in rows(data.get("controls")))
    if verdict.get("status") == "attributed" and differing:
        where = verdict.get("layer")
        text = f"identical runs differ, which {where} explains: no bound can be given"
        return Row("repeats", None, False, "not_applicable", text)
    strong = STRENGTH.get(divergence, 0) >= STRENGTH[settings.get("fail-on", "bitwise")]
    if verdict.get("status") == "inconclusive" and differing and strong:
        text = f"identical runs differ ({divergence}), and no layer could be named"
        return Row("repeats", None, True, "failed", text)
    if n >= needed:
        rate = 100 * zero_bound(n, confidence)
        text = (
            f"{n} equal runs exclude a rate of change of {rate:.2g} % at {100 * confidence:g} % "
            f"(asked for: {100 * bound:g} %)"
        )
        return Row("repeats", None, True, "passed", text)
    text = (
        f"{n} runs under one condition; {needed} are needed to exclude {100 * bound:g} % at "
        f"{100 * confidence:g} %"
    )
    return Row("repeats", None, True, "inconclusive", text)


def _expired_rows(state: _Judgement) -> Iterator[Row]:
    for waiver in state.settings.waivers:
        if not waiver.expired(state.today):
            continue
        text = f"expired on {waiver.expires.isoformat()}, so it does not apply: {waiver.name}"
        if state.settings.get("profile") == "release":
            yield Row(
                "waiver", None, True, "failed", text, waiver.to_dict(state.today),
                "gate.waiver-expired", waiver.origin,
            )  # fmt: skip
        else:
            state.notes.append(f"waiver at {waiver.origin} {text}")


def _note_unused(state: _Judgement) -> None:
    for waiver in state.settings.waivers:
        if waiver not in state.used:
            state.notes.append(f"waiver at {waiver.origin} matches nothing: {waiver.name}")
