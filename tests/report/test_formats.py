"""CI formats against their schemas, and against what the services ask beyond the schema."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from detdiag.report import render
from detdiag.report.anchors import anchor
from detdiag.report.github import SUMMARY_CAP_BYTES
from detdiag.report.model import failed_findings
from tests.report.samples import NAMES, SCHEMAS, sample


def schema(name: str) -> Any:
    return json.loads((SCHEMAS / name).read_text("utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_sarif_is_valid_and_github_accepts_it(name: str) -> None:
    log = json.loads(render(sample(name), "sarif"))
    jsonschema.Draft4Validator(schema("sarif-2.1.0-rtm.5.json")).validate(log)
    run = log["runs"][0]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(run["results"]) == len(failed_findings(sample(name)))
    for result in run["results"]:
        place = result["locations"][0]["physicalLocation"]
        uri = place["artifactLocation"]["uri"]
        assert uri and not uri.startswith("/") and ".." not in uri and "://" not in uri
        assert place["region"]["startLine"] >= 1
        assert rules[result["ruleIndex"]] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note") and result["message"]["text"]
        assert "kind" not in result


def test_sarif_speaks_of_failed_findings_only_and_lists_the_rest() -> None:
    run = json.loads(render(sample("batch-confirmed"), "sarif"))["runs"][0]
    assert [r["ruleId"] for r in run["results"]] == ["batch.size-sensitive"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == (
        "serve/config.yaml",
        12,
    )
    assert run["results"][0]["rank"] == 95.0
    assert run["properties"]["layers"]["operator"] == "ruled_out"
    assert run["properties"]["verdict"]["layer"] == "batch"


def test_sarif_keeps_waivers_as_suppressions() -> None:
    report = sample("config-static")
    report["layers"][0]["findings"][0]["waiver"] = {
        "reason": "known", "owner": "ops", "expires": "2027-01-01", "expired": False,
    }  # fmt: skip
    report["layers"][0]["findings"][1]["waiver"] = {
        "reason": "old",
        "owner": "ops",
        "expired": True,
    }
    log = json.loads(render(report, "sarif"))
    jsonschema.Draft4Validator(schema("sarif-2.1.0-rtm.5.json")).validate(log)
    waived = {r["ruleId"]: r.get("suppressions") for r in log["runs"][0]["results"]}
    assert waived["config.sampling-still-on"][0]["kind"] == "external"
    assert waived["config.ignored"] is None


def test_fingerprints_do_not_move_with_the_numbers() -> None:
    report = sample("batch-confirmed")
    before = json.loads(render(report, "sarif"))["runs"][0]["results"][0]["partialFingerprints"]
    report["layers"][2]["findings"][0]["summary"] = "Other numbers this time."
    after = json.loads(render(report, "sarif"))["runs"][0]["results"][0]["partialFingerprints"]
    assert before == after


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, ("detdiag.toml", 1)),
        ("", ("detdiag.toml", 1)),
        ("request.json", ("request.json", 1)),
        ("a/b.json:7", ("a/b.json", 7)),
        ("a/b.json:7:3", ("a/b.json", 7)),
        ("./a/b.json:0", ("a/b.json", 1)),
        ("/srv/app/serve.sh:2", ("serve.sh", 2)),
        ("../up/x.json:4", ("x.json", 4)),
        ("C:\\models\\x.json:4", ("x.json", 4)),
        ("sub\\x.json:4", ("sub/x.json", 4)),
    ],
)
def test_anchors_are_relative_files_with_a_line(
    where: str | None, expected: tuple[str, int]
) -> None:
    assert anchor({"where": where}) == expected


@pytest.mark.parametrize("name", NAMES)
def test_junit_is_valid(name: str) -> None:
    etree = pytest.importorskip("lxml.etree")
    text = render(sample(name), "junit")
    xsd = etree.XMLSchema(etree.parse(str(SCHEMAS / "junit.xsd")))
    xsd.assertValid(etree.fromstring(text.encode()))
    suite = ET.fromstring(text).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert len(cases) == int(suite.get("tests", "")) == len(sample(name)["layers"])
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(attribute, "")) == sum(c.find(tag) is not None for c in cases)


def test_junit_tells_crashed_failed_and_skipped_apart() -> None:
    def outcome(name: str, layer: str) -> str | None:
        root = ET.fromstring(render(sample(name), "junit"))
        case = next(c for c in root.iter("testcase") if c.get("name") == layer)
        return next((child.tag for child in case), None)

    assert outcome("batch-confirmed", "batch") == "failure"
    assert outcome("batch-confirmed", "operator") is None
    assert outcome("batch-confirmed", "moe") == outcome("batch-confirmed", "decode") == "skipped"
    assert outcome("probe-crashed", "operator") == "error"
    assert outcome("moe-router-tie", "operator") == "skipped"


@pytest.mark.parametrize("name", NAMES)
def test_code_quality_is_valid_with_unique_fingerprints(name: str) -> None:
    issues = json.loads(render(sample(name), "codequality"))
    jsonschema.Draft202012Validator(schema("gitlab-code-quality.schema.json")).validate(issues)
    assert len({i["fingerprint"] for i in issues}) == len(issues)
    assert bool(issues) == bool(failed_findings(sample(name)))


def test_the_schemas_refuse_broken_files() -> None:
    log = json.loads(render(sample("batch-confirmed"), "sarif"))
    log["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(schema("sarif-2.1.0-rtm.5.json")).validate(log)
    issues = json.loads(render(sample("batch-confirmed"), "codequality"))
    issues[0]["location"]["path"] = "/absolute"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema("gitlab-code-quality.schema.json")).validate(issues)


@pytest.mark.parametrize("name", NAMES)
def test_one_annotation_on_one_line(name: str) -> None:
    line = render(sample(name), "github-annotation")
    assert line.count("\n") == 1 and line.endswith("\n")
    assert line.startswith(("::error file=", "::warning file=", "::notice file="))
    assert line.count("::") >= 2


def test_the_annotation_kind_follows_the_verdict() -> None:
    assert render(sample("batch-confirmed"), "github-annotation").startswith(
        "::error file=serve/config.yaml,line=12,title=detdiag%3A batch::Likeliest layer: batch"
    )
    assert render(sample("clean"), "github-annotation").startswith("::notice ")
    assert render(sample("minimal"), "github-annotation").startswith("::warning ")


def test_the_step_summary_stays_under_the_cap() -> None:
    report = sample("batch-confirmed")
    report["method"]["limits"] = ["x" * 1000] * 2000
    assert len(render(report, "github-summary").encode()) <= SUMMARY_CAP_BYTES + 10


@pytest.mark.parametrize("name", NAMES)
def test_json_is_exactly_the_report(name: str) -> None:
    text = render(sample(name), "json")
    assert json.loads(text) == sample(name)
    assert list(json.loads(text)) == list(sample(name))
