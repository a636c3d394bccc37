"""The embedded model scored: the healthy control, planted faults, early stop, interruption."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detdiag.evidence.record import read_record
from tests.score.command import Done, detdiag

Scored = Callable[..., tuple[Done, dict[str, Any]]]


@pytest.fixture
def scored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Scored:
    def call(fault: str, *more: Any) -> tuple[Done, dict[str, Any]]:
        out = tmp_path / "s.json"
        done = detdiag(
            monkeypatch, capsys, "score", "--demo-fault", fault, "--max-new-tokens", 4,
            "-o", out, *more,
        )  # fmt: skip
        return done, json.loads(out.read_text())

    return call


def _numbers(condition: dict[str, Any]) -> dict[str, float]:
    return {f["name"]: f["value"] for f in condition["figures"]}


def test_the_healthy_control_scores_one_and_stops_early(scored: Scored, tmp_path: Path) -> None:
    """Four units a cycle of four rounds: 0.7 needs 11 units, so the first look decides."""
    done, found = scored("none", "--runs", 60, "--target", 0.7)
    assert done.code == 0, done.err
    assert found["summary"]["agreement"] == 1.0 and found["summary"]["bound"]["lower"] >= 0.7
    assert found["method"]["stopped"] == "target reached"
    assert [row["runs"] for row in found["prompts"]] == [24, 24, 24]
    plan = done.err.splitlines()
    assert plan[0].startswith("plan: 3 prompts x 60 runs x 2 conditions (solo, batch) = 360 runs")
    assert "at most 1440 new tokens, about" in plan[0]
    assert "not before 12 runs" in plan[1]
    kept = read_record(tmp_path / "s.ndjson")
    assert len(kept.observations) == 72
    assert {o.factors["batch_size"] for o in kept.observations} == {1, 3}
    numbers = _numbers({"figures": found["figures"]})
    assert numbers["digest agreement, to the first fork"] == 1.0


def test_sampling_left_on_is_seen_under_every_condition(scored: Scored) -> None:
    done, found = scored("sampling", "--runs", 12, "--target", 0.95)
    assert done.code == 1, done.err
    for condition in found["conditions"]:
        assert _numbers(condition)["pairwise agreement"] < 0.9
    assert found["summary"]["bound"]["upper"] < 0.95


def test_a_batch_effect_repeats_inside_each_condition_and_differs_between(
    scored: Scored,
) -> None:
    """Its bits move with the batch; in the first tokens no output flips, and the score says so."""
    _, found = scored("batch-effect", "--runs", 4)
    for condition in found["conditions"]:
        assert _numbers(condition)["digest agreement, to the first fork"] == 1.0
    numbers = _numbers({"figures": found["figures"]})
    assert numbers["digest agreement, to the first fork"] == pytest.approx(0.5)
    assert any(limit["key"] == "limit.digests_moved" for limit in found["limits"])


def test_a_race_moves_the_bits_of_solo_runs(scored: Scored) -> None:
    _, found = scored("dropout", "--runs", 6, "--conditions", "solo")
    assert len(found["conditions"]) == 1
    assert _numbers(found["conditions"][0])["digest agreement, first token"] < 0.2


def test_one_prompt_shares_its_batch_with_fillers(scored: Scored, tmp_path: Path) -> None:
    done, found = scored("none", "--runs", 4, "--prompt", "mira is a baker and")
    assert [c["condition"] for c in found["conditions"]] == ["solo", "batch of 4"]
    assert found["prompts"][0]["runs"] == 8
    assert not found["summary"]["bound"]["merged"]
    assert "One prompt: there is no interval" in done.err


def test_the_record_is_diagnosed(
    scored: Scored,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``detdiag report`` reads the record of a score and names the planted layer."""
    for fault, layer in (("batch-effect", "batch"), ("sampling", "config")):
        scored(fault, "--runs", 10)
        out = tmp_path / "r.json"
        detdiag(monkeypatch, capsys, "report", tmp_path / "s.ndjson", "-o", out)
        verdict = json.loads(out.read_text())["verdict"]
        assert verdict["layer"] == layer, verdict["sentence"]


def test_the_budget_ends_it_with_equal_runs(scored: Scored) -> None:
    done, found = scored("none", "--runs", 400, "--budget", "1s")
    assert found["method"]["stopped"] == "out of budget"
    assert "the budget of 1 s ends it" in done.err
    runs = {c["condition"]: c["runs"] for c in found["conditions"]}
    assert len(set(runs.values())) == 1 and 0 < runs["solo"] < 1200


def test_an_interrupted_score_keeps_its_record(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from detdiag.targets.local import LocalTarget

    calls = iter(range(1000))
    generate = LocalTarget.generate

    def interrupted(self: LocalTarget, *args: Any, **kwargs: Any) -> Any:
        if next(calls) == 9:
            raise KeyboardInterrupt
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(LocalTarget, "generate", interrupted)
    out = tmp_path / "s.json"
    done = detdiag(monkeypatch, capsys, "score", "--demo", "--runs", 50, "-o", out)
    assert done.code == 130
    kept = tmp_path / "s.ndjson"
    assert f"kept {kept}" in done.err and not out.exists()
    monkeypatch.undo()
    again = detdiag(monkeypatch, capsys, "score", "--case", kept, "--quiet")
    assert again.code in (0, 4)
    assert 0 < len(read_record(kept).observations) < 40


def test_demo_faults_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = detdiag(monkeypatch, capsys, "score", "--demo-fault", "list")
    assert done.code == 0 and "batch-effect" in done.out


def test_a_redacted_record_holds_no_text_and_scores_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept, out = tmp_path / "r.ndjson", tmp_path / "s.json"
    done = detdiag(
        monkeypatch, capsys, "score", "--demo-fault", "sampling", "--runs", 4,
        "--redact", "prompts", "-o", kept, "-o", out,
    )  # fmt: skip
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in kept.read_text("utf-8").splitlines()]
    texts = [line["output"]["text"] for line in lines if line["type"] == "observation"]
    assert len(texts) == 24 and all(text.startswith("[redacted") for text in texts)
    again = detdiag(monkeypatch, capsys, "score", "--case", kept, "--json", "--quiet")
    before, after = json.loads(out.read_text()), json.loads(again.out)
    assert after["summary"]["agreement"] == before["summary"]["agreement"]
