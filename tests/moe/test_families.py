"""Every causal-LM family with experts, as a tiny random model, against docs/moe-families.md.

Time-boxed: families that the box has no room for are skipped and say so. DETDIAG_FAMILIES_S
widens the box (seconds).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from detdiag.moe.discover import find_routers
from tests.moe import families

BOX_S = float(os.environ.get("DETDIAG_FAMILIES_S", "20"))
FIRST = ("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3", "gemma4_text", "jetmoe", "dbrx")
LAST = ("kimi_linear", "nemotron_h", "qwen3_next", "qwen3_5_moe_text", "qwen4_exp_text")
DOC = Path(__file__).parents[2] / "docs" / "moe-families.md"
_STARTED: list[float] = []


def in_order() -> list[str]:
    names = families.families()
    middle = [n for n in names if n not in FIRST + LAST]
    return [*FIRST, *middle, *(n for n in LAST if n in names)]


@pytest.mark.parametrize("name", in_order())
def test_family(name: str) -> None:
    if _STARTED and time.monotonic() - _STARTED[0] > BOX_S:
        pytest.skip(f"the time box of {BOX_S:.0f} s is used up")
    assert families.examine(name).line() in DOC.read_text(encoding="utf-8").splitlines()
    # The first family pays for the imports.
    _STARTED.append(time.monotonic())


def test_the_table_lists_every_family_once() -> None:
    lines = [x for x in DOC.read_text(encoding="utf-8").splitlines() if x.startswith("| ")]
    listed = [x.split("|")[1].strip() for x in lines[1:]]
    assert listed == families.families()
    assert len(listed) >= 55


def seq2seq(model: torch.nn.Module, ids: torch.Tensor) -> object:
    return model(input_ids=ids, decoder_input_ids=ids, use_cache=False)


def test_switch_transformers_routers() -> None:
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    config = SwitchTransformersConfig(
        vocab_size=96, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_sparse_encoder_layers=1,
        num_decoder_layers=2, num_sparse_decoder_layers=1, num_heads=4, num_experts=8,
        expert_capacity=4, decoder_start_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = SwitchTransformersForConditionalGeneration(config).eval()
    found = find_routers(model, seq2seq)
    assert [(r.experts, r.top_k, r.kind) for r in found] == [(8, 1, "token_choice")] * len(found)
    # One sparse feed-forward in each of the two stacks.
    assert len(found) == 2
    assert all(r.path.endswith(".mlp.router") for r in found)


def test_nllb_moe_routers() -> None:
    from transformers import NllbMoeConfig, NllbMoeForConditionalGeneration

    config = NllbMoeConfig(
        vocab_size=96, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, encoder_sparse_step=1,
        decoder_sparse_step=1, num_experts=8, expert_capacity=4, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = NllbMoeForConditionalGeneration(config).eval()
    found = find_routers(model, seq2seq)
    assert len(found) == 4
    assert {r.experts for r in found} == {8}
