"""Recorded incidents with a known verdict, through the same path as ``detdiag run --case``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from detdiag.engine.case_folder import load_case
from detdiag.verdict import decide

CASES = Path(__file__).parents[2] / "fixtures" / "cases"


@pytest.mark.parametrize("name", sorted(p.name for p in CASES.iterdir()))
def test_recorded_case(name: str, tmp_path: Path) -> None:
    expected = json.loads((CASES / name / "expected.json").read_text())
    folder = tmp_path / "case"
    shutil.copytree(CASES / name, folder, ignore=shutil.ignore_patterns("expected.json"))
    report = decide(load_case(folder)).to_dict()
    verdict = report["verdict"]
    named = {verdict["layer"], *(a["layer"] for a in verdict["also"])}
    assert verdict["status"] == expected["status"], verdict["sentence"]
    assert verdict["layer"] == expected["layer"], verdict["sentence"]
    assert named >= set(expected.get("also", ()))
    assert not named & set(expected["must_not"])
    assert set(expected.get("confounded", ())) <= set(verdict["confounded"])
    if verdict["status"] == "inconclusive":
        assert verdict["next"]
