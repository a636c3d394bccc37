"""Margins, distances and the wording, against values worked out by hand."""

from __future__ import annotations

import math

import torch

from detdiag.evidence.record import encode
from detdiag.trace import MarginBridge, distance, events, margin_bridge, prove_batch
from detdiag.trace.effects import Position, relative_change
from tests.trace import planted
from tests.trace.planted import alone, batch, llama


def test_margin_bridge_by_hand() -> None:
    a = torch.tensor([[16.0, 16.125, 0.0], [1.0, 9.0, 0.0]], dtype=torch.bfloat16)
    b = torch.tensor([[16.125, 16.0, 0.0], [1.0, 8.9375, 0.0]], dtype=torch.bfloat16)
    bridge = margin_bridge(a, b, operator_ulp=1, operator_count=3)
    first, second = bridge.positions
    assert (first.margin_logits, first.margin_ulp, first.noise_logits) == (0.125, 1.0, 0.25)
    assert first.at_risk and first.flipped and first.token == 1
    assert second.margin_logits == 8.0 and second.noise_logits == 0.125
    assert not second.at_risk and not second.flipped
    assert bridge.sentence() == (
        "of 2 positions 1 are at risk, 1 flipped, it is below the noise floor"
    )


def test_sentence_of_the_manual() -> None:
    def position(i: int, margin: float, flipped: bool) -> Position:
        return Position(i, 0, margin, 1.0, 0.5, flipped)

    risky = tuple(position(i, 0.1, i < 3) for i in range(9))
    safe = tuple(position(i, 5.0, False) for i in range(9, 412))
    bridge = MarginBridge(risky).merged(MarginBridge(safe))
    assert bridge.sentence() == (
        "of 412 positions 9 are at risk, 3 flipped, all 3 below the noise floor"
    )
    loud = MarginBridge((position(0, 5.0, True),))
    assert loud.sentence() == ("of 1 positions 0 are at risk, 1 flipped, 1 above the noise floor")


def test_distance_by_hand() -> None:
    a = torch.zeros(2, 3)
    b = a.clone()
    b[1, 2] = torch.finfo(torch.float32).smallest_normal
    d = distance(a, b)
    assert not d.bit_equal and d.differing == 1 and d.first_token == 1
    assert d.max_ulp == 1 << 23  # all subnormals lie between
    assert distance(a, a.clone()).bit_equal
    assert not distance(a, -a).bit_equal and distance(a, -a).max_abs_logit == 0.0


def test_relative_change() -> None:
    a = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]])
    b = torch.tensor([[3.0, 4.5], [1.0, 0.0], [0.0, 0.0]])
    values = relative_change(a, b)
    assert values[0] == round(math.log10(0.1), 3)
    assert values[1:] == [None, None]


def test_events_encode_as_json_lines() -> None:
    from detdiag.evidence.record import dumps

    model = llama()
    planted.token_count_norm(model)
    proof = prove_batch(model, alone(), batch(), toggles=False)
    out = [encode(e) for e in events(proof, query="q1")]
    assert [e["type"] for e in out[:4]] == ["finding", "series", "series", "series"]
    assert [e["name"] for e in out[1:4]] == ["proof", "operators", "heatmap"]
    assert out[0]["locus"]["module"] == "model.layers.1.input_layernorm"
    assert sum(e["type"] == "margin" for e in out) == 11
    assert all(dumps(e) for e in out)
    assert len(proof.statement) == 3 and "bits agree" in proof.statement[1]
    assert "no change" in proof.statement[2]
