from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from models import LOWERCASE, tensors, write_model

from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.finding import Finding
from detdiag.fingerprint import fingerprint_model
from detdiag.probes.interface import Plan, ProbeContext
from detdiag.probes.version import VersionProbe


def walk(path: Path, baseline: Any, **scratch: Any) -> tuple[dict[str, Finding], list[Any]]:
    target: Any = SimpleNamespace(path=path)
    plan = Plan(baseline=baseline)
    events = list(VersionProbe().run(ProbeContext(target, plan, time.monotonic() + 9, scratch)))
    return {e.rule: e for e in events if isinstance(e, Finding)}, events


def test_without_a_baseline_the_fingerprint_is_recorded_and_the_layer_skipped(
    tmp_path: Path,
) -> None:
    found, events = walk(write_model(tmp_path), None)
    assert found == {}
    (status,) = [e for e in events if isinstance(e, ProbeStatus)]
    assert status.state == "skipped" and "baseline" in status.reason
    name, facts = events[0]
    assert name == "fingerprint" and "tensors" not in facts["weights"]


def test_the_signed_off_model_passes(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    found, events = walk(folder, fingerprint_model(folder))
    assert list(found) == ["version.fingerprint-equal"]
    assert found["version.fingerprint-equal"].outcome == "passed"
    assert events[-1] == ProbeStatus("version", "done")


def test_weights_and_tokenizer_changes_are_proofs(tmp_path: Path) -> None:
    baseline = fingerprint_model(write_model(tmp_path / "a"))
    weights = tensors()
    weights["model.norm.weight"].view(np.uint16)[0] ^= 1
    changed = write_model(tmp_path / "b", weights, normalizer=LOWERCASE)
    found, events = walk(changed, baseline)
    for rule in ("version.weights-changed", "version.tokenizer-changed"):
        assert found[rule].outcome == "failed" and found[rule].proven
    table = next(t for n, t in (e for e in events if isinstance(e, tuple)) if n != "fingerprint")
    assert table[0]["severity"] == "high"


def test_libraries_differ_but_are_no_proof(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    baseline = fingerprint_model(folder)
    baseline["library_versions"] = {**baseline["library_versions"], "transformers": "4.57.1"}
    found, _ = walk(folder, baseline)
    finding = found["version.library-changed"]
    assert finding.outcome == "failed" and finding.severity == "medium" and not finding.mechanism


def test_a_baseline_without_weights_vouches_for_nothing(tmp_path: Path) -> None:
    found, _ = walk(write_model(tmp_path), {"python": "3.11.7"})
    assert found["version.weights-changed"].outcome == "inconclusive"
    found, _ = walk(write_model(tmp_path), {"strange": 1})
    assert found["version.fingerprint-equal"].outcome == "inconclusive"


def test_a_fingerprint_that_the_engine_took_is_not_taken_again(tmp_path: Path) -> None:
    held = {"weights_digest": "sha256:x"}
    found, _ = walk(tmp_path / "absent", {"weights_digest": "sha256:x"}, fingerprint=held)
    assert found["version.fingerprint-equal"].outcome == "passed"
