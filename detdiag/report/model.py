"""What the renderers ask of a report object; tolerant of every key that the contract lets miss."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detdiag.layers import LAYERS, layer_rank
from detdiag.report.safe import json_ready

Report = Mapping[str, Any]

CLUMPS: Final = (
    "cause",
    "contributor",
    "error",
    "inconclusive",
    "untested",
    "ruled_out",
    "not_applicable",
)
"""States of a layer in reading order: what needs a person first."""

SYMBOLS: Final = {
    "cause": "✗",
    "contributor": "!",
    "error": "✗",
    "inconclusive": "?",
    "untested": "–",
    "ruled_out": "✓",
    "not_applicable": "·",
}
ASCII_SYMBOLS: Final = {
    "cause": "x",
    "contributor": "!",
    "error": "x",
    "inconclusive": "?",
    "untested": "-",
    "ruled_out": "+",
    "not_applicable": ".",
}


def mapping(value: Any) -> Mapping[str, Any]:
    """``value`` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def rows(value: Any) -> list[Mapping[str, Any]]:
    """The mappings in a list; empty for anything else."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        return []
    return [row for row in value if isinstance(row, Mapping)]


def verdict(report: Report) -> Mapping[str, Any]:
    return mapping(report.get("verdict"))


def data(report: Report) -> Mapping[str, Any]:
    return mapping(report.get("data"))


def layer_state(layer: Mapping[str, Any]) -> str:
    """One of :data:`CLUMPS`; outcome ``error`` and ``not_applicable`` win over the attribution."""
    outcome, attribution = layer.get("outcome"), layer.get("attribution")
    if outcome in ("error", "not_applicable") and attribution not in ("cause", "contributor"):
        return str(outcome)
    return str(attribution) if attribution in CLUMPS else "untested"


def layers_in_walk_order(report: Report) -> list[Mapping[str, Any]]:
    return sorted(rows(report.get("layers")), key=lambda row: layer_rank(str(row.get("layer"))))


def layers_by_clump(report: Report) -> list[Mapping[str, Any]]:
    """Causes first, then what is open, then what is ruled out; the walk's order inside a clump.

    The verdict's own layer leads its clump.
    """
    named = verdict(report).get("layer")
    return sorted(
        layers_in_walk_order(report),
        key=lambda row: (CLUMPS.index(layer_state(row)), row.get("layer") != named),
    )


def findings(layer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Findings of a layer: failed first, then open, then passed; otherwise in the given order."""
    order = ("failed", "error", "inconclusive", "passed", "skipped", "not_applicable")
    return sorted(
        rows(layer.get("findings")),
        key=lambda f: order.index(f["outcome"]) if f.get("outcome") in order else len(order),
    )


def failed_findings(report: Report) -> list[tuple[str, Mapping[str, Any]]]:
    """``(layer id, finding)`` of every failed finding, causes first."""
    return [
        (str(layer.get("layer")), finding)
        for layer in layers_by_clump(report)
        for finding in findings(layer)
        if finding.get("outcome") == "failed"
    ]


def gate(report: Report) -> Mapping[str, Any]:
    """What ``detdiag check`` decided; empty for other reports."""
    return mapping(report.get("gate"))


def gated_findings(report: Report) -> list[tuple[str, Mapping[str, Any]]]:
    """``(layer id, finding)`` that code scanners list: every failed finding, or, in a gate, every
    finding that fails or warns, and the gate's own failures (an expired waiver)."""
    if not gate(report):
        return failed_findings(report)
    found = [
        (str(layer.get("layer")), finding)
        for layer in layers_by_clump(report)
        for finding in findings(layer)
        if finding.get("level", finding.get("outcome")) in ("error", "warn", "failed")
    ]
    own = [
        ("gate", {"rule": row["rule"], "summary": row.get("evidence"), "severity": "high",
                  "where": row.get("where"), "level": "error", "outcome": "failed"})
        for row in rows(gate(report).get("items"))
        if row.get("outcome") == "failed" and not row.get("layer") and row.get("rule")
    ]  # fmt: skip
    return found + own


def current_waiver(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The waiver of a finding or an item, if it has not expired; else empty."""
    waiver = mapping(row.get("waiver"))
    return {} if waiver.get("expired") else waiver


@dataclass(frozen=True, slots=True)
class RemedyRow:
    """One thing to do. ``kind`` is ``mitigate``, ``prevent`` or ``detect``."""

    layer: str
    rule: str
    kind: str
    action: str
    command: str | None
    cost: str | None
    verify: str | None
    source: str | None
    measured: Mapping[str, Any]
    box: str = "white_box"
    arithmetic: str | None = None


BOXES: Final = ("white_box", "black_box")


def remedies(report: Report) -> list[RemedyRow]:
    """Remedies in the report's own order (effect over cost; white box before black box) where it
    ranks them, else those of the failed findings, causes first, each action once."""
    ranked = [(str(r.get("layer", "")), r) for r in _ranked(report.get("remedies"))]
    found = [
        (layer, {"rule": f.get("rule"), **mapping(f.get("remedy"))})
        for layer, f in failed_findings(report)
        if mapping(f.get("remedy")).get("action")
    ]
    out: list[RemedyRow] = []
    seen: set[tuple[Any, Any]] = set()
    for layer, raw in ranked or found:
        key = (raw.get("action"), raw.get("command"))
        if key in seen:
            continue
        seen.add(key)
        out.append(
            RemedyRow(
                layer=layer,
                rule=str(raw.get("rule") or ""),
                kind=str(raw.get("type") or "mitigate"),
                action=str(raw.get("action") or ""),
                command=raw.get("command"),
                cost=raw.get("cost"),
                verify=raw.get("verify"),
                source=raw.get("source"),
                measured=mapping(raw.get("measured")),
                box=str(raw.get("box") or BOXES[0]),
                arithmetic=raw.get("arithmetic"),
            )
        )
    return out


def _ranked(value: Any) -> list[Mapping[str, Any]]:
    """The rows of two lists by box, or of one plain list."""
    lists = mapping(value)
    if not lists:
        return rows(value)
    return [{**row, "box": box} for box in BOXES for row in rows(lists.get(box))]


def remedy_boxes(report: Report) -> list[tuple[str, list[RemedyRow]]]:
    """``(box, rows)`` of each list that has any."""
    found = remedies(report)
    boxes = [(box, [r for r in found if r.box == box]) for box in BOXES]
    return [(box, listed) for box, listed in boxes if listed]


SHORT: Final = {"white_box": 3, "black_box": 2}


def short_remedies(report: Report) -> list[RemedyRow]:
    """The first few of each list, without those that were tried in vain."""
    out: list[RemedyRow] = []
    for box, listed in remedy_boxes(report):
        useful = [r for r in listed if r.measured.get("outcome") not in ("no effect", "error")]
        out += useful[: SHORT[box]] if mapping(report.get("remedies")) else useful
    return out


def primary_remedy(report: Report) -> RemedyRow | None:
    """The first remedy for the attributed layer, or the first of all."""
    named = verdict(report).get("layer")
    found = remedies(report)
    return next((r for r in found if r.layer == named), found[0] if found else None)


def first_divergence(report: Report) -> dict[str, Any]:
    place = mapping(verdict(report).get("first_divergence"))
    return {k: place[k] for k in ("query", "token", "module", "op") if place.get(k) is not None}


def table_everywhere(report: Report, name: str) -> list[Any]:
    """``data[name]`` and the tables of that name that findings carry, causes first, each once."""
    found = [data(report)[name]] if data(report).get(name) else []
    for layer in layers_by_clump(report):
        for finding in findings(layer):
            carried = mapping(finding.get("data")).get(name)
            if carried and carried not in found:
                found.append(carried)
    return found


def next_steps(report: Report) -> list[Mapping[str, Any]]:
    """The next experiments without what the primary remedy already says."""
    remedy = primary_remedy(report)
    said = {remedy.action, remedy.verify} - {None} if remedy else set()
    steps = rows(verdict(report).get("next"))
    if verdict(report).get("status") != "attributed":
        return steps
    return [s for s in steps if s.get("why") not in said and s.get("command") not in said]


def listed_module(module: Any, modules: Sequence[Any]) -> int | None:
    """Row of ``module`` among ``modules``, or of its nearest listed ancestor; None without one."""
    path = str(module)
    while path:
        if path in modules:
            return list(modules).index(path)
        path = path.rpartition(".")[0]
    return None


def fingerprint_digest(report: Report) -> str | None:
    """The fingerprint's own digest, or one over its canonical JSON; None where there is none."""
    print_ = mapping(report.get("fingerprint"))
    if not print_:
        return None
    for key in ("digest", "sha256", "fingerprint", "id"):
        if isinstance(print_.get(key), str) and print_[key]:
            return str(print_[key])
    print_ = {k: v for k, v in print_.items() if k != "created"}
    canonical = json.dumps(json_ready(print_), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def record_sha256(report: Report) -> str | None:
    value = mapping(data(report).get("reproduce")).get("record_sha256")
    if value is None:
        value = mapping(data(report).get("record")).get("sha256")
    return None if value is None else str(value)


def reproduce_command(report: Report) -> str | None:
    value = mapping(data(report).get("reproduce")).get("command")
    return None if value is None else str(value)


def redaction(report: Report) -> str:
    return str(mapping(report.get("method")).get("redact") or "none")


def layer_ids(values: Any) -> list[str]:
    """Layer ids in the walk's order (strings only)."""
    names: Iterable[Any] = values if isinstance(values, (list, tuple)) else ()
    return sorted({str(v) for v in names}, key=layer_rank)


__all__ = ["LAYERS", "CLUMPS", "SYMBOLS", "ASCII_SYMBOLS", "Report", "RemedyRow"]
