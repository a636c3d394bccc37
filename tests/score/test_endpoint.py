"""A server scored: idle and load, a cache, failures, limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detdiag.evidence.record import read_record
from tests.score.command import Done, detdiag
from tests.stub_server import Behaviour, StubServer

Scored = Callable[..., tuple[Done, dict[str, Any]]]


@pytest.fixture
def scored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Scored:
    def call(server: StubServer, *more: Any) -> tuple[Done, dict[str, Any]]:
        out = tmp_path / "s.json"
        done = detdiag(
            monkeypatch, capsys, "score", "--endpoint", server.url, "--model-name", "stub",
            "--max-new-tokens", 10, "-o", out, *more,
        )  # fmt: skip
        return done, json.loads(out.read_text()) if out.exists() else {}

    return call


def test_a_healthy_server_agrees_idle_and_under_load(scored: Scored, tmp_path: Path) -> None:
    with StubServer() as server:
        done, found = scored(server, "--runs", 24, "--target", 0.5)
        asked = [body for path, body, _ in server.requests if path.endswith("completions")]
    assert done.code == 0, done.err
    assert found["summary"]["agreement"] == 1.0
    assert [c["condition"] for c in found["conditions"]] == ["solo", "load"]
    assert [c["runs"] for c in found["conditions"]] == [72, 72]
    assert "plan: 3 prompts x 24 runs x 2 conditions" in done.err.splitlines()[0]
    assert all(body["temperature"] == 0 for body in asked[20:])
    kept = read_record(tmp_path / "s.ndjson")
    assert len(kept.observations) == 144


def test_a_server_that_moves_under_load_is_steady_when_idle(scored: Scored) -> None:
    with StubServer(Behaviour(load_share=0.5)) as server:
        _, found = scored(server, "--runs", 24)
    idle, load = found["conditions"]
    numbers = {c["condition"]: {f["name"]: f["value"] for f in c["figures"]} for c in (idle, load)}
    assert numbers["solo"]["digest agreement, to the first fork"] == 1.0
    assert numbers["load"]["digest agreement, to the first fork"] < 0.9


def test_a_server_that_samples_misses_the_target(scored: Scored) -> None:
    with StubServer(Behaviour(temperature=0.7)) as server:
        done, found = scored(server, "--runs", 48, "--target", 0.9, "--conditions", "solo")
    assert done.code == 1
    assert found["method"]["stopped"] == "target missed"
    assert found["summary"]["agreement"] < 0.5
    assert found["prompts"][0]["runs"] < 48


def test_a_response_cache_is_seen_and_gives_no_score(scored: Scored) -> None:
    with StubServer(Behaviour(response_cache=True)) as server:
        done, found = scored(server, "--runs", 6, "--target", 0.5)
    assert done.code == 4
    assert sum(found["cache"].values()) == 33
    assert "response cache" in done.last


def test_failed_requests_are_counted_and_do_not_end_it(scored: Scored) -> None:
    """Every 17th request is answered with a reply that is no JSON."""
    fault = lambda number, path: "not-json" if number % 17 == 16 else None  # noqa: E731
    with StubServer(Behaviour(fault=fault)) as server:
        done, found = scored(server, "--runs", 12)
    assert done.code == 0, done.err
    assert found["method"]["failed"]["n"] > 0
    assert "requests failed" in " ".join(done.err.split())
    assert found["summary"]["agreement"] == 1.0


def test_the_limit_of_requests_holds(scored: Scored) -> None:
    with StubServer() as server:
        done, found = scored(server, "--runs", 100, "--max-requests", 60)
        asked = sum(path.endswith("completions") for path, _, _ in server.requests)
    assert asked <= 60
    assert done.code == 0, done.err
    assert len({c["runs"] for c in found["conditions"]}) == 1
    assert found["summary"]["agreement"] == 1.0


def test_a_server_that_is_not_there_is_one_line(scored: Scored) -> None:
    with StubServer() as server:
        pass
    done, _ = scored(server, "--runs", 4)
    assert done.code == 2
    assert "cannot connect" in done.last
