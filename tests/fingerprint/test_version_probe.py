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
    assert name == "fingerprint" and facts["weights"]["count"] == 10


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
    assert finding.outcome == "inconclusive" and not finding.mechanism
    assert "was not tested" in finding.summary


def test_a_baseline_without_weights_vouches_for_nothing(tmp_path: Path) -> None:
    found, _ = walk(write_model(tmp_path), {"python": "3.11.7"})
    assert found["version.weights-changed"].outcome == "inconclusive"
    found, _ = walk(write_model(tmp_path), {"strange": 1})
    assert found["version.fingerprint-equal"].outcome == "inconclusive"


def test_a_fingerprint_that_the_engine_took_is_not_taken_again(tmp_path: Path) -> None:
    held = {"weights_digest": "sha256:x"}
    found, _ = walk(tmp_path / "absent", {"weights_digest": "sha256:x"}, fingerprint=held)
    assert found["version.fingerprint-equal"].outcome == "passed"


class Tiny:
    """Just enough of a target: a linear map from ids to logits, on the CPU."""

    dtype, device, path = "float32", "cpu", None

    def __init__(self, nudge: float = 0.0, noise: bool = False, shift: int = 0) -> None:
        import torch

        self.table = torch.arange(64.0).reshape(8, 8).sin()
        self.table[3, 3] += nudge
        self.noise = noise
        self.shift = shift
        text = SimpleNamespace(vocab_size=8)
        self.model = SimpleNamespace(
            config=SimpleNamespace(get_text_config=lambda: text, _attn_implementation="sdpa")
        )

    def tokenizer(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) + self.shift for c in text]}

    def forward(self, rows: list[list[int]]) -> list[Any]:
        import torch

        extra = torch.rand(1) if self.noise else torch.zeros(1)
        return [self.table[torch.tensor(row)] + extra for row in rows]


def live(target: Any, baseline: Any, **facts: Any) -> tuple[dict[str, Finding], list[Any]]:
    held = {"weights_digest": "sha256:x", **facts}
    plan = Plan(baseline=baseline)
    context = ProbeContext(target, plan, time.monotonic() + 9, {"fingerprint": held})
    events = list(VersionProbe().run(context))
    return {e.rule: e for e in events if isinstance(e, Finding)}, events


def recorded(target: Any, **facts: Any) -> dict[str, Any]:
    _, events = live(target, None, **facts)
    return dict(events[0][1])


def test_other_libraries_with_equal_logits_and_ids_are_cleared_by_test() -> None:
    baseline = recorded(Tiny(), environment={"OMP_NUM_THREADS": "1"})
    found, _ = live(Tiny(), baseline, environment={"OMP_NUM_THREADS": "2"})
    assert found["version.environment-changed"].outcome == "passed"
    assert found["version.numerics-changed"].outcome == "passed"


def test_logits_that_moved_by_one_ulp_are_a_proof_that_names_the_facts() -> None:
    baseline = recorded(Tiny(), gpu="L40S")
    found, _ = live(Tiny(nudge=1e-7), baseline, gpu="H200")
    finding = found["version.numerics-changed"]
    assert finding.outcome == "failed" and finding.proven and "gpu: L40S" in finding.summary
    assert "gpu" in finding.explains
    assert found["version.hardware-changed"].outcome == "inconclusive"


def test_logits_that_do_not_repeat_prove_nothing() -> None:
    found, _ = live(Tiny(noise=True), recorded(Tiny()))
    assert "version.numerics-changed" not in found


def test_a_loaded_tokenizer_that_gives_other_ids_is_a_proof() -> None:
    found, _ = live(Tiny(shift=1), recorded(Tiny()))
    finding = found["version.tokenizer-changed"]
    assert finding.outcome == "failed" and finding.proven
    assert "19 of 19 probe strings" in finding.summary
