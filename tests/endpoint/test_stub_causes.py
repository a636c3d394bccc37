"""Every cause through the whole command: right or abstaining, never wrong, often enough right.

The default run takes most causes, and of each seeds until one is right, at most three.
``DETDIAG_STUB_SEEDS=20`` runs that many of every cause and demands the stated share of right
verdicts (about half an hour).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.endpoint.command import detdiag_run
from tests.endpoint.scenarios import SCENARIOS, Scenario, diagnose, judge

SEEDS = int(os.environ.get("DETDIAG_STUB_SEEDS", "0"))
QUICK_SEEDS = 3
NAMES = [name for name, scenario in SCENARIOS.items() if SEEDS or scenario.quick]


def outcome(scenario: Scenario, seed: int, folder: Path) -> tuple[str, str]:
    """The judgement of one seed and the verdict's own sentence."""

    def run(urls: list[str], *options: str) -> dict[str, Any]:
        done = detdiag_run(urls, folder, "--quiet", "--seed", str(seed), *options)
        assert done.report is not None, done.shown
        return done.report

    report = diagnose(scenario, seed, run, folder)
    return judge(scenario, report), report["verdict"]["sentence"]


@pytest.mark.parametrize("name", NAMES)
def test_cause(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    found: list[tuple[str, str]] = []
    for seed in range(SEEDS or QUICK_SEEDS):
        found.append(outcome(scenario, seed, tmp_path))
        if not SEEDS and (found[-1][0] == "right" or scenario.share < 0.8):
            break
    wrong = [pair for pair in found if pair[0].startswith("WRONG")]
    assert not wrong, wrong
    right = sum(judgement == "right" for judgement, _ in found)
    if SEEDS:
        assert right >= scenario.share * len(found), found
    elif scenario.share >= 0.8:
        assert right, found
