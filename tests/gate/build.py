"""Reports and settings for the gate's tests."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from detdiag.evidence.case import Case, ProbeStatus
from detdiag.evidence.finding import Finding
from detdiag.gate.judge import judge
from detdiag.gate.levels import RuleLevels
from detdiag.gate.model import Gate
from detdiag.gate.settings import FileSettings, Settings, resolve
from detdiag.gate.waivers import Waiver
from detdiag.layers import LAYERS
from detdiag.verdict import decide

ROOT = Path(__file__).parents[2]
TODAY = datetime.date(2026, 6, 1)


def failing(layer: str = "config", rule: str = "config.sampling-still-on", **more: Any) -> Finding:
    return Finding(layer, rule, "failed", "something is wrong", severity="high", **more)  # type: ignore[arg-type]


def passing(layer: str) -> Finding:
    rules = {"config": "config.greedy", "input": "input.bytes-differ", "batch": "batch.contrast"}
    return Finding(layer, rules.get(layer, f"{layer}.contrast"), "passed", f"{layer} is fine")  # type: ignore[arg-type]


def static_report(*findings: Finding, probes: Sequence[ProbeStatus] = ()) -> dict[str, Any]:
    return decide(Case(findings=findings, probes=tuple(probes))).to_dict()


@cache
def _case(name: str) -> dict[str, Any]:
    from detdiag.engine.case_folder import load_case

    return decide(load_case(ROOT / "fixtures" / "cases" / name)).to_dict()


def case_report(name: str) -> dict[str, Any]:
    """The report of a recorded incident in ``fixtures/cases``."""
    return dict(_case(name))


def waiver(**fields: Any) -> Waiver:
    given = {"reason": "known", "owner": "ops", "expires": datetime.date(2026, 12, 31),
             "origin": "detdiag.toml:9", **fields}  # fmt: skip
    return Waiver(**given)


def settings(
    waivers: Sequence[Waiver] = (),
    rules: dict[str, Any] | None = None,
    file: Path | None = None,
    **given: Any,
) -> Settings:
    values = {key.replace("_", "-"): value for key, value in given.items()}
    origins = dict.fromkeys(rules or {}, "detdiag.toml:2")
    levels = RuleLevels(rules or {}, origins)
    return resolve(values, FileSettings(file, {}, levels, tuple(waivers)))


def gate_of(
    report: dict[str, Any],
    chosen: Settings,
    *,
    today: datetime.date = TODAY,
    required: Sequence[str] | None = None,
    live: bool = False,
) -> tuple[Gate, dict[str, Any]]:
    named = [r["layer"] for r in report["layers"] if r["attribution"] != "untested"]
    return judge(
        report, chosen, today=today, required=named if required is None else required, live=live
    )


__all__ = ["LAYERS"]
