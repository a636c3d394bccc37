"""Run-to-run faults: planted, named by module, proven by freezing; healthy controls."""

from __future__ import annotations

import pytest
import torch

from detdiag.trace import ForwardCall, compare, findings, prove_rerun, record
from tests.trace import planted
from tests.trace.planted import alone, llama

CASES = [
    (planted.torch_order_race, "model.layers.1.mlp", "aten.randperm", "operator"),
    (planted.python_order_race, "model.layers.1.mlp", "aten.add", "operator"),
    (planted.attention_noise, "model.layers.2.self_attn", "aten.randn_like", "operator"),
    (
        planted.dropout_on,
        "model.layers.0.self_attn",
        "aten.scaled_dot_product_attention",
        "operator",
    ),
    (planted.other_thread, "model.layers.0.mlp", "outside the dispatcher", "operator"),
    (planted.buffer_state, "model.layers.1.mlp", None, "batch"),
    (planted.counter_state, "model.layers.1.mlp", None, "batch"),
]


@pytest.mark.parametrize(
    ("plant", "module", "op", "layer"), CASES, ids=lambda c: getattr(c, "__name__", "")
)
def test_planted_fault_is_named_and_proven(plant, module, op, layer) -> None:  # type: ignore[no-untyped-def]
    model = llama()
    plant(model)
    proof = prove_rerun(model, alone(), pairs=5)
    assert proof.differing and proof.first_divergence is not None
    assert proof.first_divergence["module"] == module
    assert op is None or proof.first_divergence["op"] == op
    assert proof.status == "proven" and proof.neutral
    assert len(proof.placebos) == 2 and not any(p.remaining.bit_equal for p in proof.placebos)
    named = [f for f in findings(proof, "q") if f.outcome == "failed"]
    assert {f.layer for f in named} == {layer}
    assert all(f.mechanism and f.proven and "repeat" in f.explains for f in named)


def test_state_rule_and_stochastic_rule() -> None:
    for plant, rule in (
        (planted.buffer_state, "batch.state-carried"),
        (planted.dropout_on, "operator.stochastic"),
        (planted.python_order_race, "operator.not-repeatable"),
    ):
        model = llama(blocks=3)
        plant(model)
        found = list(findings(prove_rerun(model, alone(), pairs=3, placebos=0), None))
        assert [f.rule for f in found] == [rule]


def test_two_faults_are_both_found() -> None:
    model = llama()
    planted.torch_order_race(model)
    planted.attention_noise(model)
    proof = prove_rerun(model, alone(), pairs=3)
    assert [s.module for s in proof.sources] == ["model.layers.1.mlp", "model.layers.2.self_attn"]
    assert proof.sources[-1].after.bit_equal and proof.status == "proven"


def test_healthy_model_passes_and_keeps_its_random_state() -> None:
    model = llama()
    before = torch.get_rng_state()
    proof = prove_rerun(model, alone(), pairs=4)
    assert proof.status == "equal" and (proof.differing, proof.runs) == (0, 4)
    assert proof.neutral and not proof.sources
    assert torch.equal(before, torch.get_rng_state())
    assert [f.outcome for f in findings(proof, None)] == ["passed"]


def test_state_is_put_back() -> None:
    model = llama()
    planted.buffer_state(model)
    planted.counter_state(model)
    prove_rerun(model, alone(), pairs=2)
    mlp = model.model.layers[1].mlp
    assert mlp.calls == 0 and not mlp.average.any()


def test_weights_that_a_forward_changes_are_state() -> None:
    model = llama(blocks=2)
    head = model.model.layers[1].mlp.up_proj

    def forward(old, x):  # type: ignore[no-untyped-def]
        out = old(x)
        head.weight.data.mul_(1.001)
        return out

    planted.swap(head, forward)
    proof = prove_rerun(model, alone(), pairs=3)
    assert proof.status == "proven" and proof.first_divergence is not None
    assert proof.first_divergence["module"] == "model.layers.1.mlp.up_proj"
    assert [f.rule for f in findings(proof, None)] == ["batch.state-carried"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [planted.llama, planted.mixtral], ids=["llama", "mixtral"])
def test_pairs_without_a_fault_name_nothing(make, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    """50 traced pairs for each of four models, 200 in all: nothing is born."""
    torch.set_num_threads(1)
    model = (make(blocks=1) if make is planted.llama else make()).to(dtype)
    call = ForwardCall.from_rows([[5, 6, 7], [8, 9, 10]])
    first = record(model, call, whole=True)
    for _ in range(50):
        comparison = compare(first, record(model, call, whole=True))
        assert comparison.first is None
        assert comparison.count("equal") == len(comparison.ops)


def test_plain_module_without_a_config() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)
            self.drop = torch.nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(self.inner(x))

    torch.manual_seed(0)
    net = Net().train()
    proof = prove_rerun(net, ForwardCall(args=(torch.randn(2, 3, 4),)), pairs=4, placebos=0)
    assert proof.first_divergence == {"token": 0, "module": "drop", "op": "aten.dropout"}
