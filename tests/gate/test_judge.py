"""The decision: levels, fail-on, waivers and their expiry, open layers, the bound."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from detdiag.errors import Exit
from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.finding import Finding
from detdiag.gate.baseline import read_earlier
from detdiag.gate.judge import judge
from detdiag.gate.publish import exit_code
from detdiag.gate.settings import read_file, resolve
from detdiag.layers import LAYERS
from detdiag.report import render
from detdiag.verdict.stats import zero_bound
from tests.gate.build import (
    TODAY,
    case_report,
    failing,
    gate_of,
    passing,
    settings,
    static_report,
    waiver,
)

WHERE = "serve/request.json:3"


def test_what_is_clean_goes_and_what_fails_does_not() -> None:
    gate, report = gate_of(static_report(passing("config")), settings(profile="quick"))
    assert gate.decision == "GO" and exit_code(gate) == Exit.CLEAN
    assert "no model was run" in gate.why[0]
    assert report["gate"]["items"][0]["outcome"] == "passed"
    fault = failing(where=WHERE, subject="temperature")
    gate, report = gate_of(static_report(fault), settings(profile="quick"))
    assert gate.decision == "NO-GO" and exit_code(gate) == Exit.ATTRIBUTED
    (row,) = [row for row in gate.items if row.outcome == "failed"]
    assert row.where == WHERE and row.layer == "config" and row.required
    assert WHERE in gate.why[0] and "config.sampling-still-on" in gate.why[0]
    assert report["layers"][0]["findings"][0]["level"] == "error"


def test_nothing_checked_is_not_go() -> None:
    gate, _ = gate_of(static_report(), settings(profile="quick"))
    assert gate.decision == "INCONCLUSIVE" and exit_code(gate) == Exit.INCONCLUSIVE


def test_a_required_layer_that_is_open_is_inconclusive_and_an_optional_one_is_not() -> None:
    report = static_report(passing("config"))
    gate, _ = gate_of(report, settings(profile="quick"), required=("config", "version"))
    assert gate.decision == "INCONCLUSIVE" and gate.why[0].startswith("version not tested")
    gate, _ = gate_of(report, settings(profile="quick"), required=("config",))
    assert gate.decision == "GO"


def test_a_crash_is_told_from_a_failure_and_from_a_skip() -> None:
    crashed = ProbeStatus("batch", "error", "ValueError: boom")
    report = static_report(passing("config"), probes=[crashed])
    report["layers"][2]["outcome"] = "error"
    gate, _ = gate_of(report, settings(profile="pr", model="m"), required=("config", "batch"))
    assert gate.decision == "INCONCLUSIVE" and exit_code(gate) == Exit.INTERNAL
    assert gate.why == ("batch crashed: ValueError: boom",)
    report["layers"][0] = static_report(failing())["layers"][0]
    gate, _ = gate_of(report, settings(profile="pr", model="m"), required=("batch",))
    assert exit_code(gate) == Exit.ATTRIBUTED


@pytest.mark.parametrize(
    ("rules", "decision", "outcome"),
    [
        ({}, "NO-GO", "failed"),
        ({"config": "warn"}, "GO", "warned"),
        ({"config.*": "warn"}, "GO", "warned"),
        ({"config.sampling-still-on": "off"}, "GO", "passed"),
        ({"config": "warn", "config.sampling-still-on": "error"}, "NO-GO", "failed"),
        ({"config.*": "error", "config.sampling-*": "warn"}, "GO", "warned"),
        ({"hf-001": "error", "config": "warn"}, "NO-GO", "failed"),
    ],
)
def test_the_most_exact_rule_level_decides(
    rules: dict[str, str], decision: str, outcome: str
) -> None:
    report = static_report(failing(data={"rule_id": "hf-001"}))
    gate, _ = gate_of(report, settings(profile="quick", rules=rules))
    assert (gate.decision, gate.items[0].outcome) == (decision, outcome)


def test_an_uncertain_finding_warns_until_it_is_raised() -> None:
    unsure = Finding("config", "config.unspecified-default", "inconclusive", "a default acts",
                     severity="medium", kind="unspecified_default")  # fmt: skip
    report = static_report(unsure)
    gate, _ = gate_of(report, settings(profile="quick"))
    assert gate.decision == "GO" and gate.items[0].outcome == "warned"
    raised = settings(profile="quick", rules={"config.unspecified-default": "error"})
    gate, _ = gate_of(report, raised)
    assert gate.decision == "NO-GO"


@pytest.mark.parametrize(
    ("seen", "fail_on", "decision"),
    [
        ("text", "text", "NO-GO"), ("text", "token", "NO-GO"), ("text", "bitwise", "NO-GO"),
        ("token", "text", "GO"), ("token", "token", "NO-GO"), ("token", "bitwise", "NO-GO"),
        ("bitwise", "text", "GO"), ("bitwise", "token", "GO"), ("bitwise", "bitwise", "NO-GO"),
    ],
)  # fmt: skip
def test_a_difference_weaker_than_fail_on_is_shown_but_does_not_fail(
    seen: str, fail_on: str, decision: str
) -> None:
    report = static_report(failing("operator", "operator.race"), passing("config"))
    report["verdict"]["divergence"] = seen
    chosen = settings(profile="pr", model="m", fail_on=fail_on)
    gate, shown = gate_of(report, chosen)
    assert gate.decision == decision
    row = next(r for r in gate.items if r.layer == "operator")
    if decision == "GO":
        assert row.outcome == "warned" and f"{seen} only" in row.evidence
        assert shown["layers"][3]["findings"][0]["level"] == "warn"


def test_facts_of_files_fail_whatever_the_outputs_show() -> None:
    report = static_report(failing("version", "version.weights-changed"))
    report["verdict"]["divergence"] = "none"
    gate, _ = gate_of(report, settings(profile="pr", model="m", fail_on="text"))
    assert gate.decision == "NO-GO"


def test_a_contrasts_own_kind_counts_where_there_is_one() -> None:
    report = case_report("batch-size-in-16-bit")
    kinds = {c["divergence"] for c in report["data"]["contrasts"] if c["layer"] == "batch"}
    assert "text" in kinds or "token" in kinds
    gate, _ = gate_of(report, settings(profile="pr", model="m", fail_on="token"), live=True)
    assert gate.decision == "NO-GO"
    assert [r.layer for r in gate.items if r.outcome == "failed"] == ["batch"]


# --- waivers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("today", "decision"),
    [
        (datetime.date(2026, 6, 1), "GO"),
        (datetime.date(2026, 12, 31), "GO"),
        (datetime.date(2027, 1, 1), "NO-GO"),
        (datetime.date(2030, 1, 1), "NO-GO"),
    ],
)
def test_a_waiver_holds_through_its_last_day(today: datetime.date, decision: str) -> None:
    chosen = settings([waiver(rule="config.sampling-still-on")], profile="quick")
    gate, report = gate_of(static_report(failing()), chosen, today=today)
    assert gate.decision == decision
    held = report["layers"][0]["findings"][0]["waiver"]
    assert held["expired"] is (decision == "NO-GO")
    assert held["owner"] == "ops" and held["expires"] == "2026-12-31"
    row = gate.items[0]
    assert row.outcome == ("waived" if decision == "GO" else "failed") and row.waiver == held
    if decision == "NO-GO":
        assert any("expired on 2026-12-31" in note for note in gate.notes)


def test_an_expired_waiver_fails_a_release_even_where_nothing_else_does() -> None:
    report = case_report("clean-sixty-repeats")
    old = waiver(layer="moe", expires=datetime.date(2026, 1, 1))
    for profile, decision in (("pr", "GO"), ("release", "NO-GO")):
        chosen = settings([old], profile=profile, model="m", require=["config"])
        gate, _ = gate_of(report, chosen, required=(), live=True)
        assert gate.decision == decision, gate.why
    row = next(r for r in gate.items if r.outcome == "failed")
    assert row.rule == "gate.waiver-expired" and row.where == "detdiag.toml:9"


@pytest.mark.parametrize(
    ("fields", "covered"),
    [
        ({"rule": "config.sampling-still-on"}, True),
        ({"rule": "config.*"}, True),
        ({"rule": "hf-001"}, True),
        ({"rule": "batch.*"}, False),
        ({"layer": "config"}, True),
        ({"layer": "batch"}, False),
        ({"layer": "config", "subject": "temperature"}, True),
        ({"layer": "config", "subject": "top_p"}, False),
        ({"layer": "config", "path": "serve/request.json"}, True),
        ({"layer": "config", "path": "*.json"}, True),
        ({"layer": "config", "path": "request.json"}, True),
        ({"layer": "config", "path": "other/*.json"}, False),
    ],
)
def test_every_field_of_a_waiver_must_fit(fields: dict[str, str], covered: bool) -> None:
    fault = failing(where=WHERE, subject="temperature", data={"rule_id": "hf-001"})
    chosen = settings([waiver(**fields)], profile="quick")
    gate, _ = gate_of(static_report(fault), chosen)
    assert gate.decision == ("GO" if covered else "NO-GO")
    assert any("matches nothing" in note for note in gate.notes) is not covered


def test_a_waiver_of_a_finding_without_a_file_needs_no_path() -> None:
    chosen = settings([waiver(layer="config", path="*.json")], profile="quick")
    gate, _ = gate_of(static_report(failing()), chosen)
    assert gate.decision == "NO-GO"


def test_a_layer_that_cannot_be_tested_can_be_waived() -> None:
    report = case_report("clean-sixty-repeats")
    open_ = [r["layer"] for r in report["layers"] if r["attribution"] != "ruled_out"]
    assert open_
    chosen = settings(profile="release", model="m")
    gate, _ = gate_of(report, chosen, required=LAYERS, live=True)
    assert gate.decision == "INCONCLUSIVE"
    chosen = settings([waiver(layer=name) for name in open_], profile="release", model="m")
    gate, _ = gate_of(report, chosen, required=LAYERS, live=True)
    assert gate.decision == "GO"
    assert {r.layer for r in gate.items if r.outcome == "waived"} == set(open_)
    rule_only = settings([waiver(rule=f"{open_[0]}.*")], profile="release", model="m")
    gate, _ = gate_of(report, rule_only, required=(open_[0],), live=True)
    assert gate.decision == "INCONCLUSIVE"


# --- the bound -----------------------------------------------------------------------------


def test_the_bound_is_what_the_number_of_runs_allows() -> None:
    report = case_report("clean-sixty-repeats")
    n = report["data"]["repeatability"]["runs"]
    assert n == 60
    for bound, decision in ((1.01 * zero_bound(n), "GO"), (0.99 * zero_bound(n), "INCONCLUSIVE")):
        chosen = settings(profile="release", model="m", bound=bound)
        gate, _ = gate_of(report, chosen, required=(), live=True)
        assert gate.decision == decision, gate.why
    assert "60 runs" in gate.why[0]


def test_repeats_that_differ_without_a_named_layer_fail() -> None:
    report = case_report("clean-sixty-repeats")
    report = {
        **report,
        "verdict": {**report["verdict"], "status": "inconclusive", "divergence": "text"},
        "data": {**report["data"], "controls": [{"condition": {}, "k": 3, "n": 45}]},
    }
    gate, _ = gate_of(report, settings(profile="pr", model="m"), required=(), live=True)
    assert gate.decision == "NO-GO" and gate.why[0].startswith("repeats: ")
    report["verdict"]["divergence"] = "bitwise"
    gate, _ = gate_of(report, settings(profile="pr", model="m"), required=(), live=True)
    assert gate.decision == "GO"


def test_confounded_evidence_is_never_go() -> None:
    report = case_report("inconclusive-gpu-and-tp-together")
    chosen = settings(profile="pr", model="m")
    gate, _ = gate_of(report, chosen, required=("version",), live=True)
    assert gate.decision == "INCONCLUSIVE", gate.why


def test_a_finding_without_a_file_points_at_the_line_that_names_the_target(tmp_path: Path) -> None:
    path = tmp_path / "detdiag.toml"
    path.write_text('profile = "pr"\n\nmodel = "org/m"\n')
    report = static_report(failing("operator", "operator.race"))
    gate, _ = gate_of(report, resolve({"fail-on": "bitwise"}, read_file(path)))
    row = next(r for r in gate.items if r.outcome == "failed")
    assert row.where == "detdiag.toml:3"


def test_an_inconclusive_gate_says_what_would_settle_it() -> None:
    report = case_report("clean-sixty-repeats")
    report["method"] = {"command": "detdiag check --model m"}
    chosen = settings(profile="release", model="m", bound=0.01, budget="2m")
    gate, shown = gate_of(report, chosen, required=("version",), live=True)
    assert gate.decision == "INCONCLUSIVE"
    commands = [step["command"] for step in shown["gate"]["next"]]
    assert commands == [
        "detdiag fingerprint --model m -o signed-off.json && "
        "detdiag check --model m --baseline signed-off.json",
        "detdiag check --model m --budget 360s",
    ]
    gate, _ = gate_of(report, settings(profile="pr", model="m"), required=(), live=True)
    assert gate.decision == "GO" and gate.next == ()


def test_against_a_baseline_report_findings_are_new_unchanged_or_gone(tmp_path: Path) -> None:
    old = static_report(failing(subject="temperature"), failing("input", "input.bytes-differ"))
    path = tmp_path / "signed-off.json"
    path.write_text(json.dumps(old))
    earlier = read_earlier(str(path))
    assert earlier is not None
    now = static_report(
        failing(subject="temperature"), failing("version", "version.weights-changed")
    )
    gate, shown = judge(
        now, settings(profile="quick"), today=TODAY, required=(), live=False, earlier=earlier
    )
    states = {
        f["rule"]: f.get("baseline_state") for layer in shown["layers"] for f in layer["findings"]
    }
    assert states == {
        "config.sampling-still-on": "unchanged",
        "version.weights-changed": "new",
    }
    assert gate.notes == ("gone since the baseline: input.bytes-differ",)
    results = json.loads(render(shown, "sarif"))["runs"][0]["results"]
    assert {r["ruleId"]: r["baselineState"] for r in results} == states
    path.write_text(json.dumps({"schema": "detdiag.fingerprint/1", "weights_digest": "x"}))
    assert read_earlier(str(path)) is None and read_earlier(None) is None
    assert read_earlier("record.ndjson") is None
