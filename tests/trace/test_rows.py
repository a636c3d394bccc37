"""Row-by-row runs give each row the bits it has alone."""

from __future__ import annotations

import pytest
import torch

from detdiag.remedies import row_invariant
from detdiag.trace import ForwardCall, RowStats, bit_equal
from tests.trace.planted import ROW, batch, gpt2, llama

OTHER = [[9, 8, 7, 6, 5], [1] * 17, [50 + i for i in range(11)]]


@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_row_has_its_own_bits(n: int, attn: str, dtype: torch.dtype) -> None:
    model = llama(dtype=dtype, attn=attn, blocks=2)
    rows = ([ROW, *OTHER] * 2)[:n]
    for side in ("left", "right"):
        call = ForwardCall.from_rows(rows, padding_side=side)
        stats = RowStats()
        with row_invariant(model, stats=stats):
            together = call.run(model)
        assert stats.calls["aten.linear"] == 2 * 7 + 1
        for i, row in enumerate(rows):
            single = ForwardCall.from_rows([row])
            assert bit_equal(single.row_logits(single.run(model), 0), call.row_logits(together, i))


def test_generate_with_a_growing_cache() -> None:
    model = llama(blocks=2)
    rows = [ROW, OTHER[2], ROW[::-1]]
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    options |= {"output_logits": True, "return_dict_in_generate": True}
    ids = torch.tensor(rows)
    with row_invariant(model):
        out = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    for i, row in enumerate(rows):
        one = torch.tensor([row])
        single = model.generate(one, attention_mask=torch.ones_like(one), **options)
        for together, alone_ in zip(out.logits, single.logits, strict=True):
            assert bit_equal(together[i], alone_[0])


def test_padded_decode_steps() -> None:
    model = llama(blocks=2)
    rows, forced = [ROW, *OTHER], [(7, 8)] * 4
    call = ForwardCall.from_rows(rows, forced=forced)
    with row_invariant(model):
        together = call.run(model)
    for i, row in enumerate(rows):
        single = ForwardCall.from_rows([row], forced=[(7, 8)])
        assert bit_equal(single.row_logits(single.run(model), 0), call.row_logits(together, i))


def test_gradients_are_left_as_they_were() -> None:
    model = gpt2()
    assert torch.is_grad_enabled()
    with row_invariant(model):
        assert not torch.is_grad_enabled()
        model(**batch().kwargs)
    assert torch.is_grad_enabled()
    assert not model.transformer.h[0].attn._forward_hooks
