"""A bad rule file fails at load, with the line of the fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from detdiag.errors import DetdiagError
from detdiag.rules.load import load_file

GOOD = """surface: vllm.openai_request
fields:
  request.temperature: number
  request.model: string
rules:
- id: t-001
  when:
    request.temperature: {gt: 0}
  kind: sampling_still_on
  subject: temperature
  title: t
  explanation: e
  fix: f
  source: s
"""


def _load(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    load_file(path)


def test_a_good_file_loads(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(GOOD)
    rules, _ = load_file(path)
    assert [(r.id, r.severity) for r in rules] == [("t-001", "high")]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        (
            "request.temperature: {gt",
            "request.temprature: {gt",
            8,
            "did you mean 'request.temperature'",
        ),
        ("{gt: 0}", "{above: 0}", 8, "unknown operator 'above'"),
        ("{gt: 0}", "{gt: warm}", 8, "needs a number"),
        ("request.temperature: {gt: 0}", "request.model: {gt: 0}", 8, "needs a number field"),
        ("{gt: 0}", "{in: 3}", 8, "needs a list"),
        ("{gt: 0}", '{matches: "("}', 8, "bad pattern"),
        ("kind: sampling_still_on", "kind: sampling", 9, "unknown kind"),
        ("subject: temperature", "subjct: temperature", 10, "unknown key 'subjct'"),
        ("  title: t\n", "", 6, "lacks 'title'"),
        ("source: s", "source: s\n  versions: '>> 3'", 15, "bad version range"),
        ("source: s", "source: s\n  set: {request.top: 1}", 15, "unknown field 'request.top'"),
        ("source: s", "source: s\n  evidence: rumour", 15, "unknown evidence"),
        ("temperature: number", "temperature: warm", 3, "unknown type"),
        ("surface: vllm", "surfaces: vllm", 1, "does not name its surface"),
        ("fix: f", "fix: [f", None, "not valid YAML"),
    ],
)
def test_a_bad_field_names_its_line(
    tmp_path: Path, old: str, new: str, line: int | None, words: str
) -> None:
    assert old in GOOD
    with pytest.raises(DetdiagError) as raised:
        _load(tmp_path, GOOD.replace(old, new))
    assert words in str(raised.value)
    assert line is None or raised.value.line == line
