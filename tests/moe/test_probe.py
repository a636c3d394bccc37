"""The live probe: planted routing faults by name and place, and healthy models left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detdiag.probes.moe import MoeProbe
from tests.moe import plants
from tests.probes.tiny import Seen, context
from tests.probes.tiny import target as dense_target

BLOCK = "model.layers.1.mlp"


def seen(block: nn.Module | None, dtype: torch.dtype = torch.float32, **plan: object) -> Seen:
    torch.manual_seed(0)
    model = plants.mixtral(dtype)
    if block is not None:
        model = plants.plant(model, block)
    made = context(plants.target(model, n_prompts=1), **plan)
    return Seen(MoeProbe().run(made))


@pytest.mark.parametrize(
    ("block", "rule"),
    [
        (plants.Capacity, "moe.capacity-drop"),
        (plants.FusedCapacity, "moe.capacity-drop"),
        (plants.BatchTies, "moe.router-tie"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_faults_are_named(block: type[nn.Module], rule: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    found = seen(block(), dtype)
    assert found.rules() == {rule}
    finding = found.finding(rule)
    assert finding.mechanism
    assert "batch_size" in finding.explains and "repeat" not in finding.explains
    assert finding.locus is not None and finding.locus.module == BLOCK
    assert finding.proven


@pytest.mark.parametrize(
    ("block", "rule"),
    [
        (plants.RandomTies, "moe.router-tie"),
        (plants.NoisyTies, "moe.router-tie"),
        (plants.Jitter, "moe.router-jitter"),
    ],
)
def test_faults_under_identical_conditions_are_named(block: type[nn.Module], rule: str) -> None:
    torch.manual_seed(1)
    found = seen(block())
    assert found.rules() == {rule}
    finding = found.finding(rule)
    assert finding.mechanism and finding.proven
    assert "repeat" in finding.explains
    assert finding.locus is not None and finding.locus.module == BLOCK


@pytest.mark.parametrize(
    "block",
    [None, plants.CustomMoe, plants.HarmlessNoise, plants.SharedScale, plants.ExpertDropout],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_routing_that_is_not_the_cause_is_not_blamed(
    block: type[nn.Module] | None, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    found = seen(None if block is None else block(), dtype)
    assert found.failed() == []
    assert not any(f.mechanism for f in found.findings)


def test_solo_plan_leaves_batches_untested() -> None:
    found = seen(plants.Capacity(), batch_sizes=(1,))
    assert found.failed() == []
    assert {o.factors["batch_size"] for o in found.observations} == {1}


def test_dense_model_is_not_applicable() -> None:
    found = Seen(MoeProbe().run(context(dense_target())))
    assert [(s.state, s.reason) for s in found.status] == [("not_applicable", "no router found")]


def test_near_ties_that_follow_a_batch_effect_are_inherited() -> None:
    """Margins as small as rounding noise: experts flip with the batch, the routers do nothing."""
    model = plants.mixtral(layers=3)
    with torch.no_grad():
        for layer in model.model.layers:
            gate = layer.mlp.gate.weight
            gate.copy_(gate[:1] + gate * 1e-6)
    found = Seen(MoeProbe().run(context(plants.target(model), batch_sizes=(1, 2, 4, 8))))
    assert found.failed() == []
    table = found.series["routing"]
    assert table["prediction"]["places"] > 100
    if not table["prediction"]["observed_per_thousand"]:
        pytest.skip("products do not depend on the batch shape on this processor")
    finding = found.finding("moe.inherited-flip")
    assert finding.outcome == "passed" and not finding.mechanism
    assert table["pinned"]["weights"] > 0.9
    assert table["prediction"]["expected_per_thousand"] > 0
