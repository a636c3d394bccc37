"""Live servers fingerprinted: groups, baselines, history, and what may not be told apart."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from detdiag.commands import fingerprint
from detdiag.fingerprint.diff import diff_fingerprints
from detdiag.fingerprint.endpoint import take
from detdiag.fingerprint.numerics import compare_numerics
from tests.stub_server import Behaviour, StubServer

QUICK: dict[str, Any] = {"base_s": 0.0, "step_s": 0.0}


@contextlib.contextmanager
def servers(*behaviours: Behaviour) -> Iterator[list[str]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(StubServer(b)).url for b in behaviours]


def run(*args: str | Path) -> Any:
    app = typer.Typer()
    fingerprint.register(app)
    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["fingerprint", *map(str, args)])


def taken(**fields: Any) -> dict[str, Any]:
    with servers(Behaviour(**QUICK, **fields)) as urls:
        ((_, facts),) = take(urls)
    return facts


def test_facts_of_a_healthy_server() -> None:
    facts = taken(seed=1, fingerprint="fp_1")
    assert facts["engine"] == "vllm" and facts["engine_version"] == "0.11.0"
    assert facts["system_fingerprint"] == "fp_1" and facts["model_reported"] == "stub"
    assert len(facts["numerics"]["digests"]) == facts["endpoint"]["probes"] == 5
    assert facts["endpoint"]["probes_that_did_not_repeat"] == []
    assert facts["prompt_tokens"].keys() == facts["tokenizer_probe_ids"].keys()
    assert facts["reported"]["models"]["max_model_len"] == 1024
    assert "probe_text" not in facts
    assert facts["numerics"]["output_dtype"] == "bfloat16"
    assert set(facts["numerics"]["lattice_steps_nat"]) <= {1 / 32, 1 / 16, 1 / 8, 1 / 64}


def test_rounded_numbers_are_named() -> None:
    one, two = taken(seed=1), taken(seed=1, logprobs="rounded")
    found = compare_numerics(one, two)
    assert found is not None and found.types == ("bfloat16", "rounded")
    assert "rounded" in found.describe()


@pytest.mark.parametrize("seed", range(5))
def test_same_server_twice_agrees(seed: int) -> None:
    assert diff_fingerprints(taken(seed=seed), taken(seed=seed)) == ()


@pytest.mark.parametrize("seed", range(5))
def test_other_weights_and_another_kernel_are_told_apart(seed: int) -> None:
    base = taken(seed=seed)
    weights = compare_numerics(base, taken(seed=seed + 100))
    kernel = compare_numerics(base, taken(seed=seed, kernel="other"))
    assert weights is not None and weights.size == "far" and weights.differ == 5
    assert kernel is not None and kernel.size == "rounding"


def test_groups_of_replicas() -> None:
    healthy = Behaviour(seed=3, **QUICK)
    other = Behaviour(seed=4, **QUICK)
    with servers(healthy, other, healthy) as (a, b, c):
        done = run("--endpoint", a, "--endpoint", b, "--endpoint", c)
        assert done.exit_code == 1, done.output
        assert f"group A: {a}, {c}" in done.output and f"group B: {b}" in done.output
        assert "too far for rounding" in done.output
        done = run("--endpoint", a, "--endpoint", c, "--json")
        assert done.exit_code == 0 and len(json.loads(done.output)["groups"]) == 1


def test_baseline_and_history_name_what_moved(tmp_path: Path) -> None:
    base, log = tmp_path / "base.json", tmp_path / "log.ndjson"
    with StubServer(Behaviour(seed=5, fingerprint="fp_1", **QUICK)) as server:
        assert run("--endpoint", server.url, "-o", base).exit_code == 0
        done = run("--endpoint", server.url, "--baseline", base)
        assert done.exit_code == 0 and "agree in all" in done.output
        assert run("--endpoint", server.url, "--history", log).exit_code == 0
        server.become(Behaviour(seed=6, fingerprint="fp_2", version="0.12.0", **QUICK))
        page = tmp_path / "drift.json"
        done = run("--endpoint", server.url, "--baseline", base, "-o", page)
        assert done.exit_code == 1
        for words in ("numerics:", "system_fingerprint:", "engine_version:"):
            assert words in done.output
        report = json.loads(page.read_text())
        assert report["verdict"]["layer"] == "version"
        done = run("--endpoint", server.url, "--history", log)
        assert done.exit_code == 1 and "numerics" in done.output


def test_a_longer_prompt_on_one_side_is_named_as_input() -> None:
    with servers(Behaviour(**QUICK), Behaviour(system="be brief and kind", **QUICK)) as urls:
        (_, one), (_, two) = take(urls)
    rows = diff_fingerprints(one, two)
    assert rows[0].field.startswith("prompt_tokens") and rows[0].acts_on == "input"


def test_unsteady_probes_are_no_facts() -> None:
    """Sampling makes every probe differ from its own repeat; nothing may be concluded."""
    one, two = taken(temperature=1.0, seed=1), taken(temperature=1.0, seed=1)
    assert one["endpoint"]["probes_that_did_not_repeat"]
    rows = diff_fingerprints(one, two)
    assert [row.field for row in rows if row.field == "numerics"] == []


@pytest.mark.parametrize("how", ["rejected", "ignored"])
def test_without_log_probabilities_the_answers_are_the_fact(how: Any) -> None:
    one, two, same = (taken(seed=s, logprobs=how) for s in (1, 2, 1))
    assert "numerics" not in one and len(one["probe_text"]) == 5
    assert diff_fingerprints(one, same) == ()
    rows = diff_fingerprints(one, two)
    assert {row.rule for row in rows} == {"version.answers-changed"}


def test_several_fingerprints_behind_one_address() -> None:
    facts = taken(replicas=2, choose_replica="request", replica_fingerprints=True, fingerprint="fp")
    assert facts["system_fingerprint"] == ["fp-0", "fp-1"]


def test_unreachable_is_one_line() -> None:
    with servers(Behaviour()) as (url,):
        pass
    done = run("--endpoint", url)
    assert done.exit_code != 0 and "cannot connect" in str(done.exception)


def test_the_key_is_sent_and_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_KEY", "sk-very-secret-value")
    with StubServer(Behaviour(**QUICK)) as server:
        done = run("--endpoint", server.url, "--api-key-env", "STUB_KEY", "-o", tmp_path / "f.json")
        assert done.exit_code == 0
        assert server.requests[0][2]["authorization"] == "Bearer sk-very-secret-value"
    assert "very-secret" not in (tmp_path / "f.json").read_text() + done.output
