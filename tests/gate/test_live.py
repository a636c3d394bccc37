"""The release gate on the embedded models: GO when healthy, NO-GO at the planted layer otherwise.

Three faults of three layers run by default; ``DETDIAG_ALL_FAULTS=1`` runs every one of them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from detdiag.cli import main
from detdiag.demo import FAULTS, demo_path
from detdiag.fingerprint import fingerprint_model

QUICK = ("none", "bom", "race", "batch-effect")
ALL = tuple(FAULTS)
BUDGET_S = 40
BOUND = 0.1
"""29 equal runs: what a busy machine manages within the budget."""


@pytest.fixture(scope="module")
def signed_off(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("signed-off")
    out = {}
    for name in ("dense", "moe"):
        out[name] = folder / f"{name}.json"
        out[name].write_text(json.dumps(fingerprint_model(demo_path(name))))
    return out


def gate(fault: str, baseline: Path, work: Path, monkeypatch: Any) -> tuple[int, dict[str, Any]]:
    report = work / "r.json"
    monkeypatch.chdir(work)
    monkeypatch.setattr(
        sys, "argv",
        ["detdiag", "check", "--profile", "release", "--demo-fault", fault, "--quiet",
         "--budget", f"{BUDGET_S}s", "--bound", str(BOUND), "--baseline", str(baseline),
         "-o", str(report)],
    )  # fmt: skip
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0), json.loads(report.read_text())


@pytest.mark.parametrize(
    "fault",
    [
        name
        if name in QUICK
        else pytest.param(
            name,
            marks=pytest.mark.skipif(
                not os.environ.get("DETDIAG_ALL_FAULTS"), reason="DETDIAG_ALL_FAULTS is not set"
            ),
        )
        for name in ALL
    ],
)
def test_the_release_gate_on_the_demo(
    fault: str, signed_off: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = FAULTS[fault].layer
    baseline = signed_off["moe" if layer == "moe" else "dense"]
    code, report = gate(fault, baseline, tmp_path, monkeypatch)
    found = report["gate"]
    failed = [row["layer"] for row in found["items"] if row["outcome"] == "failed"]
    if layer is None:
        assert (code, found["decision"]) == (0, "GO"), found["why"]
        assert failed == [] and report["data"]["repeatability"]["runs"] >= 29
        assert any(row["item"] == "repeats" and row["outcome"] == "passed"
                   for row in found["items"])  # fmt: skip
        return
    assert (code, found["decision"]) == (1, "NO-GO"), found["why"]
    assert failed[0] == layer, found["why"]
    assert report["verdict"]["layer"] in failed
