"""The gate in the formats of CI systems: against their schemas, and with what each must show."""

from __future__ import annotations

import datetime
import json
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.finding import Finding
from detdiag.report import render
from tests.gate.build import ROOT, failing, gate_of, passing, settings, static_report, waiver

SCHEMAS = ROOT / "fixtures" / "schemas"
HOSTILE = "\x1b[31m</script>]]>&\u202e%0A::error::x\n\x00 {{7*7}}"
OLD = datetime.date(2026, 1, 1)


def judged() -> dict[str, Any]:
    """Every outcome at once: failed, waived, warned, crashed, not run, passed, an expired waiver,
    and hostile text in everything that a person writes."""
    findings = (
        failing(where="serve/request.json:3", subject=HOSTILE),
        failing("input", "input.bytes-differ", where="prompts/a.txt:1"),
        Finding("version", "version.library-changed", "inconclusive", HOSTILE, severity="medium"),
        passing("decode"),
    )
    report = static_report(
        *findings,
        probes=[ProbeStatus("operator", "error", HOSTILE), ProbeStatus("moe", "skipped", "none")],
    )
    for layer in report["layers"]:
        if layer["layer"] == "operator":
            layer["outcome"] = "error"
    waivers = [
        waiver(rule="input.*", reason=HOSTILE, owner=HOSTILE, origin="detdiag.toml:3"),
        waiver(rule="batch.*", expires=OLD, origin="detdiag.toml:9", reason=HOSTILE),
    ]
    gate, shown = gate_of(
        report,
        settings(waivers, profile="release", model="m"),
        required=("config", "operator"),
        live=True,
    )
    assert gate.decision == "NO-GO"
    return shown


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    return judged()


def schema(name: str) -> Any:
    return json.loads((SCHEMAS / name).read_text("utf-8"))


def test_sarif(report: dict[str, Any]) -> None:
    log = json.loads(render(report, "sarif"))
    jsonschema.Draft4Validator(schema("sarif-2.1.0-rtm.5.json")).validate(log)
    run = log["runs"][0]
    by_rule = {r["ruleId"]: r for r in run["results"]}
    assert set(by_rule) == {
        "config.sampling-still-on", "input.bytes-differ", "version.library-changed",
        "gate.waiver-expired",
    }  # fmt: skip

    def place(rule: str) -> tuple[str, int]:
        at = by_rule[rule]["locations"][0]["physicalLocation"]
        return at["artifactLocation"]["uri"], at["region"]["startLine"]

    assert place("config.sampling-still-on") == ("serve/request.json", 3)
    assert place("gate.waiver-expired") == ("detdiag.toml", 9)
    assert place("version.library-changed") == ("detdiag.toml", 1)
    assert by_rule["config.sampling-still-on"]["level"] == "error"
    assert by_rule["version.library-changed"]["level"] == "warning"
    assert by_rule["input.bytes-differ"]["suppressions"][0]["status"] == "accepted"
    assert all("suppressions" not in r for k, r in by_rule.items() if k != "input.bytes-differ")
    assert run["properties"]["gate"] == {"decision": "NO-GO", "profile": "release"}


def test_junit_has_one_case_a_layer_and_tells_outcomes_apart(report: dict[str, Any]) -> None:
    etree = pytest.importorskip("lxml.etree")
    text = render(report, "junit")
    xsd = etree.XMLSchema(etree.parse(str(SCHEMAS / "junit.xsd")))
    xsd.assertValid(etree.fromstring(text.encode()))
    layers, gate = ET.fromstring(text).findall("testsuite")
    seen = {c.get("name"): next((x.tag for x in c), "passed") for c in layers.findall("testcase")}
    assert seen == {
        "config": "failure", "input": "skipped", "batch": "skipped", "operator": "error",
        "decode": "passed", "moe": "skipped", "version": "passed",
    }  # fmt: skip
    assert {c.get("name"): next((x.tag for x in c), "") for c in gate.findall("testcase")} == {
        "repeats": "skipped",
        "waiver": "failure",
    }
    root = ET.fromstring(text)
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("9", "2", "1")
    assert "waived until 2026-12-31" in text and "&#27;" not in text and "\x1b" not in text


def test_code_quality(report: dict[str, Any]) -> None:
    issues = json.loads(render(report, "codequality"))
    jsonschema.validate(issues, schema("gitlab-code-quality.schema.json"))
    assert {i["check_name"]: i["severity"] for i in issues} == {
        "config.sampling-still-on": "critical",
        "version.library-changed": "minor",
        "gate.waiver-expired": "critical",
    }
    assert len({i["fingerprint"] for i in issues}) == len(issues)


def test_one_annotation_that_hostile_text_cannot_break_out_of(report: dict[str, Any]) -> None:
    text = render(report, "github-annotation")
    assert text.count("\n") == 1 and text.endswith("\n")
    assert text.startswith("::error file=serve/request.json,line=3,title=detdiag check%3A NO-GO::")
    assert "\x1b" not in text
    go, shown = gate_of(static_report(passing("config")), settings(profile="quick"))
    assert render(shown, "github-annotation").startswith("::notice file=detdiag.toml,line=1,")
    assert go.decision == "GO"
    _, shown = gate_of(static_report(), settings(profile="quick"))
    assert render(shown, "github-annotation").startswith("::warning ")


@pytest.mark.parametrize("kind", ["html", "md", "text", "github-summary", "json"])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_people_see_the_checklist_the_waiver_and_the_decision(
    report: dict[str, Any], kind: str, lang: str
) -> None:
    text = render(report, kind, lang=lang, plotly="none")
    assert "NO-GO" in text
    assert "\x1b" not in text and "\u202e" not in text
    if kind != "json":
        assert "2026-12-31" in text and "config.sampling-still-on" in text
        assert ("已豁免" if lang == "zh" else "waived") in text
    if kind == "html":
        assert "</script>]]>" not in text


def test_redaction_reaches_the_gate(report: dict[str, Any]) -> None:
    secret = "violet-hedgehog-4711"
    gate, shown = gate_of(
        static_report(failing(where=f"{secret}.json:1"), failing("input", "input.bytes-differ")),
        settings([waiver(rule="input.*", owner=secret, reason=secret)], profile="quick"),
    )
    assert secret in render(shown, "json")
    for kind in ("html", "md", "text", "sarif", "junit", "codequality", "github-annotation",
                 "github-summary", "json"):  # fmt: skip
        assert secret not in render(shown, kind, redact="all", plotly="none"), kind
    assert gate.decision == "NO-GO"
