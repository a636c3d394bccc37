"""The trace itself: neutral, complete, and safe for in-place work, caches, autocast, compile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from detdiag.errors import DetdiagError
from detdiag.trace import ForwardCall, bit_equal, compare, prove_batch, record
from detdiag.trace.align import cut_like
from detdiag.trace.calls import Layout
from tests.trace import planted
from tests.trace.planted import ROW, alone, batch, llama


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_neutral(dtype: torch.dtype, attn: str) -> None:
    model = llama(dtype=dtype, attn=attn, blocks=2)
    solo = record(model, alone())
    for call in (alone(), batch(), batch(3, 20)):
        plain = call.run(model)
        with torch.no_grad():
            usual = model(**call.kwargs).logits
        assert bit_equal(plain, usual)
        assert bit_equal(record(model, call, solo=solo).logits, plain)


def test_counts_of_a_llama_forward() -> None:
    """Worked out from the architecture: 7 products a block and the head, 2 norms a block and 1."""
    trace = record(llama(blocks=2), alone())
    names = [op.name for op in trace.ops]
    assert names.count("aten.linear") == 2 * 7 + 1
    assert names.count("aten.scaled_dot_product_attention") == 2
    assert names.count("aten.rsqrt") == 2 * 2 + 1
    paths = [op.frame.path for op in trace.ops if op.name == "aten.linear"]
    assert paths[0] == "model.layers.0.self_attn.q_proj" and paths[-1] == "lm_head"
    assert trace.coverage.operators == len(trace.ops) and trace.coverage.hidden == 0


def test_views_cost_no_second_hash() -> None:
    class Views(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            return (y.view(-1).view(4, -1).reshape(2, 2, -1).flatten()) * 2

    x = torch.randn(4, 8)
    trace = record(Views(), ForwardCall(args=(x,)))
    assert [op.name for op in trace.ops] == ["aten.add", "aten.mul"]
    assert trace.coverage.bytes_hashed == 3 * x.numel() * 4


def test_in_place_inputs_are_hashed_before() -> None:
    class InPlace(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 1
            y.add_(1)
            return y * 2

    trace = record(InPlace(), ForwardCall(args=(torch.randn(2, 3),)))
    mul, add, last = trace.ops
    assert add.inputs[0].digest == mul.outputs[0].digest
    assert add.outputs[0].digest != add.inputs[0].digest
    assert last.inputs[0].digest == add.outputs[0].digest and last.inputs[0].producer == 1


def test_recycled_addresses_are_not_confused() -> None:
    class Recycling(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out = x * 1
            for i in range(50):
                t = torch.tensor([float(i)] * 64)
                out = out + t
                del t
            return out

    a = record(Recycling(), ForwardCall(args=(torch.zeros(1, 64),)))
    digests = [op.inputs[1].digest for op in a.ops if op.name == "aten.add"]
    assert len(set(digests)) == 50


def test_padded_row_is_found_and_pads_do_not_count() -> None:
    model = llama(blocks=1)
    solo = record(model, alone())
    one = record(model, batch(3, 20), solo=solo)
    again = record(model, batch(3, 20, pad_id=9), solo=solo)
    first = {op.index: op for op in one.ops}
    comparison = compare(solo, one)
    assert all(
        o.label in ("equal", "absorbed") for o in comparison.ops if "q_proj" in o.op.frame.path
    )
    for op in again.ops:
        twin = first[op.index]
        if any(s.batched for s in op.outputs):
            assert [s.digest for s in op.outputs] == [s.digest for s in twin.outputs]


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("length", [11, 20])
def test_cached_decode_steps(cache: str, length: int) -> None:
    model = llama(blocks=2)
    solo = alone(forced=[(7, 8)], cache=cache)
    rows = [ROW, [5] * length, [6] * length]
    call = ForwardCall.from_rows(rows, forced=[(7, 8)] * 3, cache=cache)
    proof = prove_batch(model, solo, call, toggles=False, placebos=0)
    assert proof.neutral
    assert proof.difference is not None
    assert not proof.sources or proof.sources[-1].after.bit_equal
    assert all(s.op in ("aten.linear", "aten.scaled_dot_product_attention") for s in proof.sources)
    plain = solo.row_logits(solo.run(model), 0)
    assert plain.shape == (len(ROW) + 2, 128)


def test_autocast() -> None:
    model = llama(blocks=2)

    def autocast(m: nn.Module, call: ForwardCall) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m(**call.kwargs).logits

    solo, call = replace(alone(), invoke=autocast), replace(batch(), invoke=autocast)
    trace = record(model, solo)
    linear = next(op for op in trace.ops if op.name == "aten.linear")
    assert linear.outputs[0].dtype == "torch.bfloat16"
    assert prove_batch(model, solo, call, toggles=False).neutral


def test_compiled_model_runs_eagerly_and_says_so() -> None:
    model = llama(blocks=1)
    compiled = torch.compile(model, backend="eager")
    proof = prove_batch(compiled, alone(), batch(), toggles=False)
    assert proof.neutral and any("compiled" in note for note in proof.notes)
    trace = record(compiled, alone())
    assert [op.frame.path for op in trace.ops if op.name == "aten.linear"][-1] == "lm_head"


def test_refuses_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(DetdiagError, match="captured"):
        alone().run(llama(blocks=1))


def test_other_streams_never_fail() -> None:
    """A mask changes the operators of attention; the rest still pairs up."""
    model = llama(blocks=2)
    solo = record(model, alone())
    padded = record(model, batch(3, 20), solo=solo)
    assert len(padded.ops) != len(solo.ops)
    comparison = compare(solo, padded)
    assert comparison.streams_differ
    paired = [o for o in comparison.ops if o.other is not None]
    assert len(paired) >= 0.9 * len(solo.ops)
    assert all(o.op.name == o.other.name and o.op.frame == o.other.frame for o in paired)


@pytest.mark.parametrize(
    ("shape", "solo", "expected"),
    [
        ((4, 20, 8), (1, 11, 8), (1, 11, 8)),
        ((80, 8), (11, 8), (1, 11, 8)),
        ((4, 2, 20, 8), (1, 2, 11, 8), (1, 2, 11, 8)),
        ((4, 1, 20, 20), (1, 1, 11, 11), (1, 1, 11, 11)),
        ((160, 8), (22, 8), (1, 11, 2, 8)),
        ((8,), (8,), (8,)),
        ((4, 19, 8), (1, 11, 8), None),
        ((4, 20), (1, 11, 1), None),
    ],
)
def test_axis_inference(shape, solo, expected) -> None:  # type: ignore[no-untyped-def]
    """The picked elements are row 2's real columns, by brute force over indices."""
    real = tuple(range(9, 20))
    layout = Layout(4, 20, 20, (real,) * 4, (real,) * 4)
    single = Layout(1, 11, 11, (tuple(range(11)),), (tuple(range(11)),))
    cut = cut_like(shape, solo, layout, single, 2)
    if expected is None:
        assert cut is None
        return
    assert cut is not None
    t = torch.arange(torch.Size(shape).numel()).reshape(shape)
    got = cut.apply(t)
    assert tuple(s for s in got.shape if s != 1) == tuple(s for s in expected if s != 1)
    if shape == (80, 8):
        assert torch.equal(got.squeeze(), t[2 * 20 + 9 : 3 * 20])
    if shape == (4, 2, 20, 8):
        assert torch.equal(got[0], t[2, :, 9:])


def test_hidden_work_is_counted() -> None:
    model = llama(blocks=1)
    planted.other_thread(model)
    trace = record(model, alone())
    assert trace.coverage.hidden >= 1 and any("mlp" in n for n in trace.coverage.notes)


def test_device_digests_give_the_same_labels() -> None:
    """The reduction that runs on accelerators, run here, read once at the end."""
    model = llama(blocks=2)
    planted.token_count_norm(model)
    for device in (False, True):
        solo = record(model, alone(), device_digests=device)
        both = record(model, batch(), solo=solo, device_digests=device)
        comparison = compare(solo, both)
        labels = [(o.op.name, o.label) for o in comparison.ops]
        assert comparison.first is not None
        assert comparison.first.op.frame.path == "model.layers.1.input_layernorm"
        if not device:
            expected = labels
    assert labels == expected
    digests = [s.digest for op in both.ops for s in op.outputs]
    assert all(d is None or 0 <= d < 1 << 64 for d in digests)
