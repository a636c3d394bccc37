"""JUnit XML: one testcase a layer; crashed, failed and skipped told apart.

In a gate a layer fails where its checklist rows fail (a waived one is skipped), and a second suite
holds the rows that belong to no layer: the bound, expired waivers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

from detdiag.report.model import (
    Report,
    findings,
    first_divergence,
    gate,
    layer_state,
    layers_in_walk_order,
    mapping,
    rows,
    verdict,
)
from detdiag.report.numbers import interval, k_of_n
from detdiag.report.safe import finite, visible


def render_junit(report: Report) -> str:
    """A ``testsuites`` document; the verdict sentence is the suite's ``system-out``."""
    make = _gated_case if gate(report) else _case
    cases = [make(layer, report) for layer in layers_in_walk_order(report)]
    own = [_item_case(row) for row in rows(gate(report).get("items")) if not row.get("layer")]
    root = ET.Element("testsuites", {"name": "detdiag", **_counts([*cases, *own])})
    suite = _suite(root, "detdiag", cases)
    _properties(suite, report)
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = _text(verdict(report).get("sentence"))
    if gate(report):
        suite = _suite(root, "detdiag.gate", own)
        suite.extend(own)
        why = "\n".join(_text(line) for line in gate(report).get("why") or ())
        said = f"{_text(gate(report).get('decision'))}: {why}"
        ET.SubElement(suite, "system-out").text = said
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _counts(cases: list[ET.Element]) -> dict[str, str]:
    def count(tag: str) -> str:
        return str(sum(case.find(tag) is not None for case in cases))

    return {"tests": str(len(cases)), "failures": count("failure"), "errors": count("error")}


def _suite(root: ET.Element, name: str, cases: list[ET.Element]) -> ET.Element:
    skipped = str(sum(case.find("skipped") is not None for case in cases))
    return ET.SubElement(root, "testsuite", {"name": name, **_counts(cases), "skipped": skipped})


def _text(value: Any) -> str:
    """XML 1.0 cannot hold control characters: they are spelled as escapes."""
    return visible(value, keep="\n")


def _properties(suite: ET.Element, report: Report) -> None:
    found = verdict(report)
    box = ET.SubElement(suite, "properties")
    for key in ("status", "layer", "rule", "confidence", "divergence"):
        if found.get(key) is not None:
            ET.SubElement(box, "property", {"name": f"verdict.{key}", "value": _text(found[key])})


def _new_case(layer: Mapping[str, Any], report: Report) -> ET.Element:
    name = _text(layer.get("layer"))
    attributes = {"classname": "detdiag.layers", "name": name}
    wall_s = next(
        (
            finite(probe.get("wall_s"))
            for probe in rows(mapping(report.get("method")).get("probes"))
            if probe.get("layer") == layer.get("layer")
        ),
        None,
    )
    if wall_s is not None:
        attributes["time"] = f"{wall_s:.3f}"
    return ET.Element("testcase", attributes)


def _case(layer: Mapping[str, Any], report: Report) -> ET.Element:
    case = _new_case(layer, report)
    state, title = layer_state(layer), _text(layer.get("title"))
    if state in ("cause", "contributor"):
        failure = ET.SubElement(case, "failure", {"type": _rule(layer, state), "message": title})
        failure.text = _detail(layer, report)
    elif state == "error":
        error = ET.SubElement(case, "error", {"type": "probe-crashed", "message": title})
        error.text = _detail(layer, report)
    elif state in ("inconclusive", "untested", "not_applicable"):
        ET.SubElement(case, "skipped", {"message": f"{state.replace('_', ' ')}: {title}"})
    return case


def _gated_case(layer: Mapping[str, Any], report: Report) -> ET.Element:
    """By the layer's rows in the checklist: the worst one decides."""
    case = _new_case(layer, report)
    mine = [r for r in rows(gate(report).get("items")) if r.get("layer") == layer.get("layer")]
    for outcome in ("failed", "error", "waived", "inconclusive", "skipped", "not_applicable"):
        found = [row for row in mine if row.get("outcome") == outcome]
        if found:
            _mark(case, outcome, found, _detail(layer, report))
            break
    return case


def _item_case(row: Mapping[str, Any]) -> ET.Element:
    case = ET.Element("testcase", {"classname": "detdiag.gate", "name": _text(row.get("item"))})
    _mark(case, str(row.get("outcome")), [row], _text(row.get("evidence")))
    return case


def _mark(case: ET.Element, outcome: str, found: list[Mapping[str, Any]], detail: str) -> None:
    message = "; ".join(_text(row.get("evidence")) for row in found)
    if outcome == "failed":
        kind = _text(found[0].get("rule") or found[0].get("item"))
        ET.SubElement(case, "failure", {"type": kind, "message": message}).text = detail
    elif outcome == "error":
        ET.SubElement(case, "error", {"type": "probe-crashed", "message": message}).text = detail
    elif outcome == "waived":
        waiver = mapping(found[0].get("waiver"))
        until = f"waived until {_text(waiver.get('expires'))} by {_text(waiver.get('owner'))}"
        said = f"{until}: {_text(waiver.get('reason'))} ({message})"
        ET.SubElement(case, "skipped", {"message": said})
    elif outcome in ("inconclusive", "skipped", "not_applicable"):
        word = outcome.replace("_", " ")
        ET.SubElement(case, "skipped", {"message": f"{word}: {message}"})


def _rule(layer: Mapping[str, Any], state: str) -> str:
    rule = next((f.get("rule") for f in findings(layer) if f.get("outcome") == "failed"), None)
    return _text(rule or state)


def _detail(layer: Mapping[str, Any], report: Report) -> str:
    lines: list[str] = []
    for finding in findings(layer):
        if finding.get("outcome") in ("passed", "skipped", "not_applicable"):
            continue
        lines.append(f"{_text(finding.get('rule'))}: {_text(finding.get('summary'))}")
        for row in rows(finding.get("evidence")):
            ends = interval(row.get("ci95"))
            counted = k_of_n(row, "value") if row.get("n") is not None else _text(row.get("value"))
            lines.append(f"  {_text(row.get('metric'))}: {counted}{f' ({ends})' if ends else ''}")
        command = mapping(finding.get("remedy")).get("command")
        if command:
            lines.append(f"  do: {_text(command)}")
    place = first_divergence(report)
    if place and layer.get("layer") == verdict(report).get("layer"):
        lines.append("first divergence: " + ", ".join(f"{k} {_text(v)}" for k, v in place.items()))
    return "\n".join(lines)
