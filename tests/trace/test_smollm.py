"""The measured example on SmolLM2-135M-Instruct: the source is aten.linear, 211 calls."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detdiag.trace import ForwardCall, Proof, prove_batch
from detdiag.trace.schema import op_info

pytestmark = pytest.mark.smollm
FOLDER = os.environ.get("DETDIAG_SMOLLM2", "")
TOKENS = 81


class SplitK(TorchDispatchMode):
    """Products of more than one row's tokens sum over two halves of K, as a GEMM library may."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op_info(func).name != "aten.linear" or args[0].shape[0] == 1 or len(args) > 2:
            return func(*args, **(kwargs or {}))
        x, w = args
        half = x.shape[-1] // 2
        a = func(x[..., :half].float(), w[:, :half].float())
        return (a + func(x[..., half:].float(), w[:, half:].float())).to(x.dtype)


@contextlib.contextmanager
def shape_dependent(natural: bool) -> Iterator[None]:
    with contextlib.nullcontext() if natural else SplitK():
        yield


def loaded(dtype: torch.dtype) -> tuple[torch.nn.Module, list[int]]:
    if not Path(FOLDER, "config.json").is_file():
        pytest.skip("DETDIAG_SMOLLM2 names no model folder")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=dtype).eval()
    text = "Explain to a new colleague why the same prompt can give two answers. " * 9
    return model, AutoTokenizer.from_pretrained(FOLDER)(text)["input_ids"][:TOKENS]


@pytest.mark.parametrize(
    ("dtype", "n"), [(torch.bfloat16, 8), (torch.float32, 2)], ids=["bf16-8", "fp32-2"]
)
def test_measured_example(dtype: torch.dtype, n: int) -> None:
    model, row = loaded(dtype)
    solo, copies = ForwardCall.from_rows([row]), ForwardCall.from_rows([row] * n)
    masked = ForwardCall(kwargs={**copies.kwargs, "attention_mask": torch.ones(n, TOKENS).long()})
    proof = prove_batch(model, solo, masked, budget_s=600, toggles=False)
    if proof.status == "equal":  # this processor's products do not depend on the batch: plant it
        with shape_dependent(natural=False):
            proof = prove_batch(model, solo, masked, budget_s=600, toggles=False)
    check(proof)


def test_padding_sends_attention_to_another_kernel() -> None:
    """One row behind seven columns of padding: a mask, and with it another attention path."""
    model, row = loaded(torch.float32)
    padded = ForwardCall.from_rows([row], padded_length=TOKENS + 7)
    proof = prove_batch(model, ForwardCall.from_rows([row]), padded, budget_s=600, toggles=False)
    if proof.status == "equal":
        pytest.skip("this processor's attention gives the same bits with and without a mask")
    assert proof.status == "proven"
    attention = "aten.scaled_dot_product_attention"
    assert [(s.op, s.calls) for s in proof.sources] == [(attention, 30)]
    assert proof.labels["unalignable"] == 0
    assert not any(p.changed for p in proof.placebos)


def check(proof: Proof) -> None:
    assert proof.status == "proven" and proof.neutral
    assert [(s.op, s.calls) for s in proof.sources] == [("aten.linear", 211)]
    assert proof.sources[0].after.bit_equal
    assert proof.first_divergence is not None
    assert proof.first_divergence["module"] == "model.layers.0.self_attn.q_proj"
    placebos = {p.target: p for p in proof.placebos}
    assert placebos["aten.scaled_dot_product_attention"].calls == 30
    assert placebos["aten.mean"].calls == 61
    assert not any(p.changed for p in proof.placebos)
    assert not any(r["op"] == "aten.sum" for r in proof.operators if r["label"] == "born")
    assert any(r["op"] == "aten.sum" for r in proof.operators)
