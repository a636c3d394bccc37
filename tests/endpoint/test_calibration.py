"""Simulated servers, judged without HTTP: what hides is never accused, what was done is named."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from detdiag.evidence.case import Case
from detdiag.evidence.observation import Observation, Output
from detdiag.verdict.endpoint.judge import Judged, judge_arms
from detdiag.verdict.endpoint.samples import read_samples

World = Callable[[str, str], int]
"""``world(arm, connection) -> outcome`` of one call."""
SEEDS = range(6)


def walked(seed: int, world: World) -> Judged:
    """The arms of one walk: idle, connections, cold starts, bursts among idle blocks."""
    found: list[Observation] = []

    def ask(arm: str, unit: str, connection: str, **context: object) -> None:
        told = {"arm": arm, "unit": unit, **context}
        found.append(
            Observation(
                f"o{len(found)}", "q", output=Output(text=f"t{world(arm, connection)}"),
                factors={"connection": connection, "time": float(len(found))},
                response={"context": told},
            )
        )  # fmt: skip

    for i in range(16):
        ask("idle", f"idle-{i // 4}", f"c{i % 4}")
    for i in range(12):
        ask("idle", f"spread-{i // 4}", f"s{i}")
    for salt in range(4):
        for turn in range(5):
            arm = "warm" if turn else "cold"
            ask(arm, f"k{salt}", "c0", salt=f"k{salt}", lever="salt", lever_known=True)
    for number in range(10):
        for i in range(4):
            ask("idle", f"block-{number}", f"c{i}", look=1)
        for i in range(6):
            place = f"c{i}" if i < 4 else f"s{i}"
            ask("burst", f"burst-{number}", place, look=1, witness="metrics", running=8, size=8)
    samples = read_samples(found)
    return judge_arms(
        Case(tuple(found), target={"kind": "endpoint"}), samples, logprobs=True, undrawn=True
    )


def hidden_pool(share: float, seed: int) -> World:
    chance = random.Random(seed)
    return lambda arm, connection: int(chance.random() < share)


def other_tenants(seed: int) -> World:
    """Somebody else's load comes and goes, and acts while it is there."""
    chance, on = random.Random(seed), [0]

    def world(arm: str, connection: str) -> int:
        if chance.random() < 0.05:
            on[0] = int(chance.random() < 0.3)
        return on[0]

    return world


def by_connection(seed: int) -> World:
    chance, seen = random.Random(seed), {}

    def world(arm: str, connection: str) -> int:
        return seen.setdefault(connection, int(chance.random() < 0.4))

    return world


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
def test_a_hidden_pool_is_never_accused(share: float, seed: int) -> None:
    assert walked(seed, hidden_pool(share, seed)).named == ()


@pytest.mark.parametrize("seed", SEEDS)
def test_other_tenants_are_never_accused(seed: int) -> None:
    assert walked(seed, other_tenants(seed)).named == ()


@pytest.mark.parametrize("seed", SEEDS)
def test_replicas_by_connection_are_version_or_open(seed: int) -> None:
    named = walked(seed, by_connection(seed)).named
    assert {f.layer for f, _ in named} <= {"version"}


@pytest.mark.parametrize("seed", SEEDS)
def test_half_of_the_replies_under_load(seed: int) -> None:
    chance = random.Random(seed)
    found = walked(seed, lambda arm, _: int(arm == "burst" and chance.random() < 0.5))
    assert [f.rule for f, _ in found.named] == ["batch.load-sensitive"]


def test_cold_starts_and_a_healthy_server() -> None:
    found = walked(0, lambda arm, _: int(arm == "cold"))
    assert [f.rule for f, _ in found.named] == ["batch.prefix-reuse"]
    healthy = walked(0, lambda arm, _: 0)
    assert healthy.named == () and healthy.open is None
    assert {f.rule for f in healthy.findings if f.outcome == "passed"} >= {
        "batch.load-sensitive",
        "batch.prefix-reuse",
        "operator.not-repeatable",
    }
