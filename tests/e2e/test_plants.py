"""The whole walk on planted models: the planted layer and module are named, nothing else is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from detdiag.verdict import decide
from tests.plants import NAMES, Plant, make


def diagnose_plant(plant: Plant, record: Path, budget_s: float = 45.0) -> dict[str, Any]:
    """The report of one planted folder, through the same engine as ``detdiag run --model``."""
    from detdiag.engine.live import LiveRun, diagnose
    from detdiag.fingerprint import fingerprint_model
    from detdiag.probes.interface import Plan
    from detdiag.targets.local import load_local, text_prompts

    kwargs = plant.generate_kwargs or {}
    target = load_local(
        str(plant.path),
        trust_remote_code=plant.trust_remote_code,
        prompts=text_prompts(plant.prompts),
        generate_kwargs=kwargs,
    )
    plan = Plan(
        batch_sizes=plant.batch_sizes,
        repeats=10,
        max_new_tokens=12,
        budget_s=budget_s,
        baseline=fingerprint_model(plant.baseline) if plant.baseline else None,
        generate_kwargs=kwargs,
    )
    run = LiveRun(
        target, plan, record, "detdiag run", fingerprint=fingerprint_model(plant.path), quiet=True
    )
    return decide(diagnose(run)).to_dict()


@pytest.mark.parametrize("name", NAMES)
def test_planted_fault_is_named(name: str, tmp_path: Path) -> None:
    plant = make(name, tmp_path)
    report = diagnose_plant(plant, tmp_path / "record.ndjson")
    shutil.rmtree(plant.path)
    verdict = report["verdict"]
    errors = [r for r in report["layers"] if r["outcome"] == "error"]
    assert not errors, errors
    named = {verdict["layer"], *(a["layer"] for a in verdict["also"])} - {None}
    assert not named & plant.not_layers, verdict["sentence"]
    assert verdict["layer"] == plant.layer, verdict["sentence"]
    assert named >= set(plant.also)
    assert verdict["status"] == ("attributed" if plant.layer else "clean"), verdict["sentence"]
    if plant.modules:
        assert verdict["first_divergence"]["module"] in plant.modules
