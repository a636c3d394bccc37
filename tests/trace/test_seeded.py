"""Seeded faults: one-ULP noise at a random operator call of a random block must be named."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from detdiag.demo import demo_path
from detdiag.trace import ForwardCall, prove_batch, prove_rerun, record, reruns
from detdiag.trace.match import ancestors
from tests.trace import planted
from tests.trace.planted import ROW, fault

Site = tuple[str, str, int]


def sites(model: torch.nn.Module, call: ForwardCall) -> list[Site]:
    """Floating operator calls on the way to the logits (results of one tensor, not in place)."""
    trace = record(model, call, whole=True)
    path = ancestors(trace, floating=True)
    return [
        (op.name, op.frame.path, op.occurrence)
        for op in trace.ops
        if op.index in path
        and op.floating
        and len(op.outputs) == 1
        and op.outputs[0].dtype in ("torch.float32", "torch.bfloat16")
        and not op.name.endswith("_")
    ]


def subjects() -> list[Any]:
    """The two demo models, and tiny ones of two more architectures and other dtypes."""
    demo = [
        AutoModelForCausalLM.from_pretrained(demo_path(name)).eval() for name in ("dense", "moe")
    ]
    eager = planted.llama(blocks=2, dtype=torch.bfloat16, attn="eager")
    return [*demo, planted.llama(blocks=2), planted.gpt2(), eager, planted.mixtral()]


def test_noise_from_run_to_run_is_named_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(reruns, "CHECKS", 1)  # naming is tested here, not how often it is checked
    call = ForwardCall.from_rows([[5, 6, 7, 8]])
    models = subjects()
    known = [sites(m, call) for m in models]
    generator = random.Random(1)
    shown, named, missed = 0, 0, []
    for seed in range(90):
        model, places = models[seed % len(models)], known[seed % len(models)]
        site = generator.choice(places)
        with fault(model, site, seed=seed):
            proof = prove_rerun(model, call, pairs=1, placebos=0)
        if proof.status == "equal":
            continue  # the noise was absorbed on the way to the logits
        shown += 1
        first = proof.first_divergence or {}
        if (first.get("op"), first.get("module")) == site[:2]:
            named += 1
        else:
            missed.append((site, first, proof.status))
        if shown == 42:
            break
    assert shown >= 40
    assert named >= 0.95 * shown, missed


def test_noise_in_batches_only_is_named_exactly() -> None:
    """The models here give equal bits alone and in a batch until the fault is planted."""
    torch.set_num_threads(1)
    model = planted.llama(blocks=2)
    solo = ForwardCall.from_rows([ROW])
    batched = ForwardCall.from_rows([ROW] * 3)
    assert prove_batch(model, solo, batched, toggles=False).status == "equal"
    shown, missed = 0, []
    known = sites(model, solo)
    for site in random.Random(2).sample(known, 11):
        with fault(model, site, batched=True):
            proof = prove_batch(model, solo, batched, toggles=False, placebos=0)
        if proof.status == "equal":
            continue
        shown += 1
        first = proof.first_divergence or {}
        if (first.get("op"), first.get("module")) != site[:2]:
            missed.append((site, first, proof.status))
    assert shown >= 6
    assert not missed
