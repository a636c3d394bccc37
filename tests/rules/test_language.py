"""Operators, version ranges and severities, against values worked out by hand."""

from __future__ import annotations

import pytest

from detdiag.errors import DetdiagError
from detdiag.rules.condition import MISSING, compile_condition, holds
from detdiag.rules.load import all_rules
from detdiag.rules.model import severity_of
from detdiag.rules.verdict_rules import COMPILED, all_texts, describe, load_source
from detdiag.rules.versions import epochs, merge_text, parse_span, version_key


@pytest.mark.parametrize(
    ("entry", "value", "expected"),
    [
        ({"gt": 0}, 0.5, True),
        ({"gt": 0}, 0, False),
        ({"gt": 0}, "0.5", True),
        ({"gt": 0}, True, False),
        ({"gt": 0}, "warm", False),
        ({"gt": 0}, MISSING, False),
        (0, 0.0, True),
        (0, "0", True),
        (0, "warm", False),
        (True, "true", True),
        (True, "1", True),
        ("absent", MISSING, True),
        ("absent", 0, False),
        ("present", 0, True),
        ("absent", None, True),
        ({"isnt": 1}, MISSING, True),
        ({"isnt": 1}, "0", True),
        ({"isnt": 1}, "1", False),
        ({"ne": 1}, MISSING, False),
        ({"ne": 1}, 2, True),
        ({"in": ["a", 2]}, "A", True),
        ({"not_in": [0, 1]}, 0.0, False),
        ({"not_in": [0]}, 3, True),
        ({"has": "temperature"}, ["top_k", "temperature"], True),
        ({"has": "x"}, "xyz", True),
        ({"lacks": "temperature"}, ["top_k"], True),
        ({"matches": "^fp8"}, "fp8_e4m3", True),
        ({"longer_than": 1}, [1, 2], True),
        ({"longer_than": 1}, [1], False),
    ],
)
def test_operators(entry: object, value: object, expected: bool) -> None:
    test = compile_condition({"f": entry}, {"f": "any"})
    assert holds(test, lambda name: value) is expected


def test_connectives() -> None:
    fields = {"a": "any", "b": "any"}
    raw = {"a": 1, "any": [{"b": 1}, {"b": 2}], "not": {"b": 2}}
    test = compile_condition(raw, fields)
    for b, expected in ((1, True), (2, False), (3, False)):
        assert holds(test, {"a": 1, "b": b}.__getitem__) is expected


def test_versions_in_order() -> None:
    ordered = [
        "0.5.3.dev1",
        "0.5.3rc1",
        "v0.5.3",
        "0.5.3.post1",
        "0.5.4",
        "0.10.0",
        "0.10.1",
        "1.0",
    ]
    assert sorted(set(ordered), key=version_key) == ordered
    assert version_key("b6926") < version_key("b6927") < version_key("b10000")
    assert version_key("0.8.0") == version_key("v0.8") == version_key("0.8.0-cu126")
    assert version_key("2023-05-15") < version_key("2023-12-01-preview") < version_key("2024-02-01")


def test_a_version_without_digits_is_an_error() -> None:
    with pytest.raises(DetdiagError, match="cannot read a version"):
        version_key("latest")


def test_every_stretch_of_versions_answers_the_same_inside() -> None:
    spans = [parse_span(">=0.8.0"), parse_span("<=0.5.3"), parse_span(">=0.4,<0.6")]
    line = epochs(spans)
    assert [e.until for e in line] == ["0.4", "the release after 0.5.3", "0.6", "0.8.0", None]
    probes = ["0.1", "0.4", "0.5.3", "0.5.4", "0.5.9", "0.6", "0.7.9", "0.8.0", "2.0"]
    for text in probes:
        key = version_key(text)
        inside = [e for e in line if e.key <= key][-1]
        assert [s.holds(inside.key) for s in spans] == [s.holds(key) for s in spans], text


def test_stretches_in_words() -> None:
    line = epochs([parse_span(">=1.0,<2.0")])
    assert merge_text([1], line) == "from 1.0 up to, not including, 2.0"
    assert merge_text([0, 2], line) == "before 1.0; 2.0 and later"


@pytest.mark.parametrize(
    ("kind", "subject", "severity"),
    [
        ("sampling_still_on", "x", "high"),
        ("unsupported_error", "x", "high"),
        ("ignored_parameter", "temperature", "high"),
        ("ignored_parameter", "seed", "high"),
        ("ignored_parameter", "top_p", "high"),
        ("ignored_parameter", "topK", "high"),
        ("ignored_parameter", "options.top_k", "high"),
        ("ignored_parameter", "n", "medium"),
        ("breaks_batch_invariance", "x", "medium"),
        ("unspecified_default", "temperature", "medium"),
        ("best_effort_only", "temperature", "low"),
        ("ok", "temperature", "info"),
    ],
)
def test_severity_is_fixed_by_kind_and_subject(kind: str, subject: str, severity: str) -> None:
    assert severity_of(kind, subject) == severity  # type: ignore[arg-type]


def test_every_rule_is_sourced_and_written_out() -> None:
    for rule in all_rules():
        assert rule.source.strip() and rule.explanation.strip() and rule.fix.strip(), rule.id
        assert rule.title[-1] != "." and len(rule.title) < 110, rule.id
        assert rule.verified or rule.severity == "info", rule.id


def test_verdict_texts_are_the_source_and_cover_the_common_rules() -> None:
    import json

    assert json.loads(COMPILED.read_text()) == load_source()
    for rule in (
        "batch.size-sensitive",
        "decode.exact-tie",
        "moe.capacity-drop",
        "operator.not-repeatable",
        "config.sampling-still-on",
        "input.doubled-bos",
    ):
        text = describe(rule)
        assert text is not None and text.passed != text.failed
    assert describe("batch.no-such-rule") is None
    assert {t.layer for t in all_texts().values()} == {
        "config",
        "input",
        "batch",
        "operator",
        "decode",
        "moe",
        "version",
    }
