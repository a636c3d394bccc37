"""JUnit XML: one testcase a layer; crashed, failed and skipped told apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as ET

from detdiag.report.model import (
    Report,
    findings,
    first_divergence,
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
    cases = [_case(layer, report) for layer in layers_in_walk_order(report)]
    count = {
        tag: sum(c.find(tag) is not None for c in cases) for tag in ("failure", "error", "skipped")
    }
    totals = {
        "name": "detdiag",
        "tests": str(len(cases)),
        "failures": str(count["failure"]),
        "errors": str(count["error"]),
    }
    root = ET.Element("testsuites", totals)
    suite = ET.SubElement(root, "testsuite", {**totals, "skipped": str(count["skipped"])})
    _properties(suite, report)
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = _text(verdict(report).get("sentence"))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _text(value: Any) -> str:
    """XML 1.0 cannot hold control characters: they are spelled as escapes."""
    return visible(value, keep="\n")


def _properties(suite: ET.Element, report: Report) -> None:
    found = verdict(report)
    box = ET.SubElement(suite, "properties")
    for key in ("status", "layer", "rule", "confidence", "divergence"):
        if found.get(key) is not None:
            ET.SubElement(box, "property", {"name": f"verdict.{key}", "value": _text(found[key])})


def _case(layer: Mapping[str, Any], report: Report) -> ET.Element:
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
    case = ET.Element("testcase", attributes)
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
