"""Batch faults: planted, named by module, proven by intervention; healthy controls."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detdiag.trace import ForwardCall, findings, prove_batch
from tests.trace import planted
from tests.trace.planted import ROW, alone, batch, gpt2, llama, mixtral

SDPA = "aten.scaled_dot_product_attention"


def rules(proof) -> list[str]:  # type: ignore[no-untyped-def]
    return [f.rule for f in findings(proof, "q") if f.outcome == "failed"]


def prove(model: nn.Module, call: ForwardCall, **kwargs: object):  # type: ignore[no-untyped-def]
    return prove_batch(model, alone(), call, toggles=False, **kwargs)  # type: ignore[arg-type]


def test_token_count_dependent_norm() -> None:
    model = llama()
    planted.token_count_norm(model)
    proof = prove(model, batch())
    assert proof.status == "proven" and proof.neutral
    assert proof.first_divergence["module"] == "model.layers.1.input_layernorm"
    assert rules(proof) == ["batch.token-count"]


def test_scale_shared_by_the_batch() -> None:
    model = llama()
    planted.batch_scale(model)
    rows = [ROW, [99] * 11, [44] * 11, [17] * 11]
    found = []
    for row in range(4):
        solo = ForwardCall.from_rows([rows[row]])
        proof = prove_batch(model, solo, ForwardCall.from_rows(rows), row=row, toggles=False)
        found.append(proof)
    differing = [p for p in found if p.status != "equal"]
    assert differing  # the row with the largest value sets the scale and stays as it is
    for proof in differing:
        assert proof.status == "proven"
        assert proof.first_divergence["module"] == "model.layers.0.mlp"
        assert proof.first_divergence["op"] == "aten.amax"
        assert rules(proof) == ["batch.shared-scale"]


def test_expert_capacity_is_moe() -> None:
    model = llama()
    planted.expert_capacity(model)
    rows = [[(7 * i + j) % 120 for j in range(11)] for i in range(3)] + [ROW]
    proof = prove(model, ForwardCall.from_rows(rows), row=3)
    assert proof.first_divergence["module"] == "model.layers.1.mlp"
    assert proof.status == "proven" and rules(proof) == ["moe.capacity-drop"]


def test_neighbours_leak_in() -> None:
    model = llama()
    planted.neighbour_mean(model)
    proof = prove(model, batch())
    assert proof.first_divergence["module"] == "model.layers.0.self_attn"
    assert proof.status == "proven" and rules(proof) == ["batch.neighbour-content"]


@pytest.mark.parametrize("make", [llama, gpt2])
def test_padding_without_positions(make) -> None:  # type: ignore[no-untyped-def]
    model = make()
    proof = prove(model, batch(3, 20, position_ids=False))
    assert proof.sources[0].kind == "positions"
    assert rules(proof)[0] == "batch.padding-positions"
    with_positions = prove(model, batch(3, 20))
    assert "batch.padding-positions" not in rules(with_positions)


def test_padding_alone_is_attention_not_the_mask_sum() -> None:
    """A mask sends attention to another kernel; the sum over the mask is not a suspect."""
    proof = prove(llama(), batch(3, 20))
    assert proof.status == "proven"
    assert [s.op for s in proof.sources] == [SDPA]
    assert not any("sum" in r["op"] for r in proof.operators if r["label"] == "born")
    assert any(r["op"] == "aten.sum" for r in proof.operators)


@pytest.mark.parametrize("side", ["left", "right"])
def test_one_row_behind_padding_is_aligned_and_proven(side: str) -> None:
    """No batch axis at all: the row is what is left of the padded columns."""
    proof = prove(llama(), alone(padded_length=20, padding_side=side))
    if proof.status == "equal":
        pytest.skip("this processor's attention gives the same bits with and without a mask")
    assert proof.status == "proven"
    assert [s.op for s in proof.sources] == [SDPA]
    assert proof.labels["unalignable"] == 0
    assert len(proof.placebos) == 3 and not any(p.changed for p in proof.placebos)
    assert "padded run" in proof.statement[0]


def test_planted_norm_behind_padding_is_named() -> None:
    """Thirty columns are more than the norm's threshold, eleven are not."""
    model = llama(attn="eager")
    planted.token_count_norm(model)
    proof = prove(model, alone(padded_length=30))
    modules = {s.module for s in proof.sources}
    assert "model.layers.1.input_layernorm" in modules
    assert proof.sources[-1].after.bit_equal


def test_rows_behind_padding_stay_finite_when_a_mean_runs_row_by_row() -> None:
    """A variance of zero in the padding would grow through the norms to infinity."""
    from detdiag.trace import row_by_row

    model, call = llama(blocks=6), alone(padded_length=30)
    plain = call.row_logits(call.run(model), 0)
    with row_by_row(model, call, lambda name, _: name == "aten.mean") as stats:
        logits = call.row_logits(call.run(model), 0)
    assert stats.calls["aten.mean"] == 13
    assert torch.isfinite(logits).all()
    assert (logits - plain).abs().max() < 1e-4


def test_natural_difference_in_decode_steps() -> None:
    """One column against several: matrix-vector kernels differ from matrix-matrix ones."""
    solo = alone(forced=[(7, 8)])
    copies = ForwardCall.from_rows([ROW] * 8, forced=[(7, 8)] * 8)
    proof = prove_batch(llama(), solo, copies, toggles=False)
    if proof.status == "equal":
        pytest.skip("this processor's kernels give the same bits at both shapes")
    assert proof.status == "proven"
    assert [s.op for s in proof.sources] == ["aten.linear"]
    assert proof.sources[0].calls == 3 * (3 * 7 + 1)
    assert not any(p.changed for p in proof.placebos) and len(proof.placebos) == 3


def test_experts_that_differ_by_rounding_are_not_called_routing() -> None:
    proof = prove(mixtral(), batch())
    if proof.status == "equal":
        pytest.skip("this processor's kernels give the same bits at both shapes")
    assert proof.first_divergence["module"].endswith("mlp.experts")
    assert rules(proof) == ["batch.size-sensitive"]
    assert proof.labels["unalignable"] > 0 and any("aligned" in n for n in proof.notes)


def test_dynamic_int8_linear() -> None:
    model = torch.ao.quantization.quantize_dynamic(llama(), {nn.Linear}, dtype=torch.qint8)
    proof = prove(model, batch())
    assert proof.status == "proven"
    assert [s.op for s in proof.sources] == ["quantized.linear_dynamic"]
    assert rules(proof) == ["batch.shared-scale"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_healthy_batch_is_equal(dtype: torch.dtype) -> None:
    proof = prove(llama(dtype=dtype), ForwardCall.from_rows([ROW] * 4))
    assert proof.status in ("equal", "proven")
    if proof.status == "equal":
        assert not proof.sources and proof.labels["equal"] == sum(proof.labels.values())
        assert [f.outcome for f in findings(proof, None)] == ["passed"]


def test_other_tokens_are_refused() -> None:
    proof = prove(llama(), ForwardCall.from_rows([[1] * 11] * 2))
    assert proof.status == "inputs_differ" and not proof.sources


def test_model_that_does_not_repeat_is_handed_over() -> None:
    model = llama()
    planted.attention_noise(model)
    proof = prove(model, batch())
    assert proof.status == "not_repeatable" and not proof.sources


def test_tables_and_directions() -> None:
    model = llama()
    planted.token_count_norm(model)
    proof = prove(model, batch(), tokens=[f"t{i}" for i in range(11)])
    assert proof.operators[0]["label"] == "born"
    methods = {e.method: e for e in proof.interventions}
    assert methods["graft batch into solo"].changed
    assert methods["constant shape"].remaining.bit_equal
    heat = proof.heatmap
    assert heat is not None and heat["tokens"][0] == "t0"
    assert len(heat["log10_rel"]) == len(heat["modules"])
    before = heat["modules"].index("model.layers.0")
    after = heat["modules"].index("model.layers.1.input_layernorm")
    assert all(v is None for v in heat["log10_rel"][before])
    assert any(v is not None for v in heat["log10_rel"][after])
    assert proof.to_dict()["sources"][0]["module"] == "model.layers.1.input_layernorm"


def test_budget_is_kept_and_skipped_work_is_listed() -> None:
    model = llama()
    planted.token_count_norm(model)
    proof = prove(model, batch(), budget_s=0.0)
    assert proof.status != "proven" and proof.skipped
