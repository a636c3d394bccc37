"""Each white-box remedy stops what it is for, changes nothing else, and is undone on exit."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from detdiag.demo import demo_path
from detdiag.demo.faults import serving
from detdiag.errors import DetdiagError
from detdiag.remedies import (
    fp32_head,
    fp32_router,
    no_dropout,
    no_jitter,
    pinned_routing,
    row_invariant,
    stateless,
    torch_repeatable,
    uncapped_experts,
)
from detdiag.targets.local import LocalTarget, load_local
from detdiag.trace import ForwardCall, bit_equal
from detdiag.trace.schema import op_info
from tests.plants.build import random_model

ROWS = [[3, 17, 25, 99, 14, 7, 201, 11], [5, 6, 7], [44] * 11, [9, 8, 7, 6, 5, 4]]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class SplitK(TorchDispatchMode):
    """Products over more than one row's tokens sum two halves of K, as a GEMM library may."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op_info(func).name not in ("aten.linear", "aten.mm", "aten.addmm") or not _many(args[0]):
            return func(*args, **(kwargs or {}))
        if op_info(func).name != "aten.linear" or len(args) > 2:
            return func(*args, **(kwargs or {}))
        x, w = args
        half = x.shape[-1] // 2
        a = func(x[..., :half].float(), w[:, :half].float())
        return (a + func(x[..., half:].float(), w[:, half:].float())).to(x.dtype)


def _many(x: Any) -> bool:
    return x.shape[0] > 1 and x.dim() == 3


def logits_of(call: ForwardCall, model: Any, row: int) -> torch.Tensor:
    return call.row_logits(call.run(model), row)


def equal_to_solo(model: Any, rows: list[list[int]], **kwargs: Any) -> tuple[int, int]:
    """Rows with their solo bits: as is, and under row_invariant; products depend on the shape."""
    with SplitK():
        solo = [logits_of(ForwardCall.from_rows([row]), model, 0) for row in rows]
        call = ForwardCall.from_rows(rows, **kwargs)
        plain = call.run(model)
        with row_invariant(model):
            held = call.run(model)
    counts = [
        sum(bit_equal(call.row_logits(out, i), solo[i]) for i in range(len(rows)))
        for out in (plain, held)
    ]
    return counts[0], counts[1]


MODELS = {
    "llama": lambda dtype: random_model("dense", dtype),
    "gpt2": lambda dtype: random_model("absolute", dtype),
    "qwen3moe": lambda dtype: random_model("moe", dtype),
    "demo": lambda dtype: load_local(demo_path("dense"), dtype=str(dtype)[6:]).model,
    "demo-moe": lambda dtype: load_local(demo_path("moe"), dtype=str(dtype)[6:]).model,
}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_rows_have_their_solo_bits(name: str, dtype: torch.dtype, side: str) -> None:
    model = MODELS[name](dtype)
    plain, held = equal_to_solo(model, (ROWS * 2)[:5], padding_side=side)
    assert plain < 5 and held == 5


@pytest.mark.parametrize("n", [2, 5, 8, 16])
def test_batch_sizes(n: int) -> None:
    model = MODELS["llama"](torch.bfloat16)
    plain, held = equal_to_solo(model, (ROWS * 4)[:n])
    assert plain < n and held == n


GENERATE = {
    "max_new_tokens": 5, "do_sample": False, "pad_token_id": 2, "eos_token_id": None,
    "output_logits": True, "return_dict_in_generate": True,
}  # fmt: skip


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "gpt2"])
def test_generate_with_padded_rows(name: str) -> None:
    model = MODELS[name](torch.bfloat16)
    ids = ForwardCall.from_rows(ROWS, pad_id=2).kwargs
    with SplitK():
        solo = [
            model.generate(torch.tensor([r]), attention_mask=torch.ones(1, len(r)), **GENERATE)
            for r in ROWS
        ]
        with row_invariant(model) as stats:
            held = model.generate(
                ids["input_ids"], attention_mask=ids["attention_mask"], **GENERATE
            )
    for row, alone in enumerate(solo):
        for together, single in zip(held.logits, alone.logits, strict=True):
            assert bit_equal(together[row], single[0])
    assert set(stats.whole) <= {"aten.sum"}


def test_custom_modules_row_by_row() -> None:
    """A module whose own code looks at the batch is out of reach of operators, not of modules."""
    model = random_model("dense", torch.bfloat16)
    path = "model.layers.1.mlp.down_proj"
    call = ForwardCall.from_rows([ROWS[0]] * 4)
    with split_by_token_count(model, path):
        solo = logits_of(ForwardCall.from_rows([ROWS[0]]), model, 0)
        with row_invariant(model):
            assert not bit_equal(logits_of(call, model, 2), solo)
        for modules in ([path], "leaves"):
            with row_invariant(model, modules=modules) as stats:
                assert bit_equal(logits_of(call, model, 2), solo)
            assert stats.calls[path] == 1
    assert all("forward" not in vars(m) for m in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@contextlib.contextmanager
def split_by_token_count(model: Any, path: str) -> Iterator[None]:
    from detdiag.demo.faulty import SplitByTokenCount
    from detdiag.demo.invariant import swapped

    with swapped({model.get_submodule(path): SplitByTokenCount}):
        yield


FAMILIES = (
    "gpt_oss",  # attention sinks
    "llama4_text",  # a block that returns its routing beside the output
    "gemma4_text",  # experts that hang on the layer itself
    "granitemoe_swa",  # log-sum-exp over the keys
    "laguna",  # a gate of a few features a token
    "deepseek_v3",
    "gemma2",
    "bloom",
    "qwen3",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_families(family: str) -> None:
    from tests.moe.families import tiny_model

    model = tiny_model(family).eval()
    rows = [[x % 90 + 2 for x in row] for row in ROWS]
    for side in ("left", "right"):
        plain, held = equal_to_solo(model, rows, padding_side=side)
        assert plain < 4 and held == 4


def test_a_cut_has_the_strides_of_a_tensor_of_its_own() -> None:
    from detdiag.trace.splitting import laid_out_as

    def of(n: int, length: int) -> list[torch.Tensor]:
        x = torch.arange(n * length * 24.0).reshape(n, length, 24)
        heads = x.view(n, length, 4, 6).transpose(1, 2)
        return [x, heads, x[..., 8:16], heads[..., :-1], x.transpose(1, 2)]

    for whole, own, axis in zip(of(3, 7), of(1, 5), (1, 2, 1, 2, 2), strict=True):
        cut = laid_out_as(whole[1:2].narrow(axis, 2, 5), whole)
        assert (cut.shape, cut.stride()) == (own.shape, own.stride())
        assert torch.equal(cut, whole[1:2].narrow(axis, 2, 5))
    mask = torch.ones(1, 1, 5).expand(3, 4, 5)
    assert laid_out_as(mask[:1], mask).stride() == mask[:1].stride()


def test_unknown_module_is_an_error() -> None:
    with (
        pytest.raises(AttributeError),
        row_invariant(random_model("dense", torch.float32), modules="x"),
    ):
        pass


SMOLLM = os.environ.get("DETDIAG_SMOLLM2", "")


@pytest.mark.smollm
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_smollm(dtype: str, record_property: Any) -> None:
    if not Path(SMOLLM, "config.json").is_file():
        pytest.skip("DETDIAG_SMOLLM2 names no model folder")
    target = load_local(SMOLLM, dtype=dtype, device="cpu")
    texts = [p.text or "" for p in target.prompts]
    texts += ["Hello", "def f(x):\n    return x", "Once upon a time there was a small dragon"]
    rows = [list(target.tokenizer(t)["input_ids"]) for t in texts]
    for n in (2, 5, 8, 16):
        for kwargs in ({"padding_side": "left"}, {"padding_side": "right"}):
            _, held = equal_to_solo(target.model, (rows * 3)[:n], **kwargs)
            assert held == n
        _, held = equal_to_solo(target.model, [rows[0]] * n)
        assert held == n


# --- torch_repeatable


def flags() -> list[Any]:
    import torch.utils.deterministic as settings

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return [
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        settings.fill_uninitialized_memory,
        cudnn.benchmark,
        cudnn.deterministic,
        cudnn.allow_tf32,
        matmul.allow_tf32,
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_fp16_reduced_precision_reduction,
        torch.get_num_threads(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
    ]


def test_switches_are_on_inside_and_restored_after_an_error() -> None:
    torch.set_num_threads(2)
    torch.backends.cudnn.benchmark = True
    before = flags()
    with pytest.raises(KeyError), torch_repeatable(seed=3):
        inside = flags()
        drawn = torch.rand(2).tolist(), random.random(), float(np.random.rand())
        raise KeyError
    assert flags() == before
    assert inside[:10] == [True, False, False, False, True, False, False, False, False, 1]
    assert inside[10:14] == [False, False, True, ":4096:8"]
    with torch_repeatable(seed=3):
        assert drawn == (torch.rand(2).tolist(), random.random(), float(np.random.rand()))
    torch.backends.cudnn.benchmark = False
    torch.set_num_threads(1)


def test_operators_without_a_deterministic_form_raise() -> None:
    x = torch.rand(1, 1, 4, 4)
    with torch_repeatable(), pytest.raises(RuntimeError, match="determinis"):
        torch.empty(4).put_(torch.tensor([0, 0]), torch.rand(2), accumulate=False)
    with torch_repeatable(deterministic=False, attention="as-is", threads=None):
        assert not torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cuda.flash_sdp_enabled()
    assert x.shape == (1, 1, 4, 4)


# --- precision


def test_head_in_float32() -> None:
    model = load_local(demo_path("dense"), dtype="bfloat16").model
    ids = torch.tensor([ROWS[0]])
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    weight = model.lm_head.weight
    tied = model.get_input_embeddings().weight
    before = model(input_ids=ids).logits
    with fp32_head(model):
        logits = model(input_ids=ids).logits
        assert model.get_input_embeddings().weight is tied
    assert logits.dtype == torch.float32
    assert torch.equal(logits, F.linear(hidden.float(), weight.float()))
    assert model.lm_head.weight is weight and bit_equal(before, model(input_ids=ids).logits)


def test_head_ends_ties() -> None:
    model = load_local(demo_path("dense"), dtype="bfloat16").model

    def ties(logits: torch.Tensor) -> int:
        top = logits.topk(2, dim=-1).values
        return int((top[..., 0] == top[..., 1]).sum())

    ids = torch.arange(8, 600).reshape(8, -1)
    found = ties(model(input_ids=ids).logits)
    with fp32_head(model):
        assert ties(model(input_ids=ids).logits) < found


def test_router_in_float32_chooses_like_a_float32_router() -> None:
    from detdiag.moe.capture import capture
    from detdiag.moe.discover import find_routers

    model = random_model("moe", torch.bfloat16)
    routers = find_routers(model)
    ids = torch.arange(64).reshape(1, -1)

    def chosen() -> list[tuple[torch.Tensor, torch.Tensor]]:
        with capture(model, routers, keep=True) as seen, torch.no_grad():
            model(input_ids=ids)
        return [(c.args[0], c.selection.ids) for c in seen.calls if c.selection]

    with fp32_router(model) as paths:
        calls = chosen()
        assert len(calls) == len(paths) == 3
    for path, (hidden, ids_) in zip(paths, calls, strict=True):
        weight = model.get_submodule(path).weight
        scores = F.linear(hidden.reshape(-1, 64).float(), weight.float()).softmax(-1)
        assert torch.equal(
            scores.topk(2).indices.sort(-1).values, ids_.reshape(-1, 2).sort(-1).values
        )
        assert weight.dtype == torch.bfloat16
    with (
        pytest.raises(DetdiagError, match="router"),
        fp32_router(random_model("dense", torch.float32)),
    ):
        pass


# --- routing, state, draws, capacity: the planted faults of the demo


def planted(fault: str, work: Path) -> tuple[LocalTarget, Any]:
    from detdiag.demo import FAULTS

    case = FAULTS[fault].apply(work)
    target = load_local(case.model_dir, dtype="bfloat16", device="cpu", prompts=case.prompts)
    return target, serving(fault)(target.model)


def distinct(target: LocalTarget, rows: list[list[list[int]]]) -> int:
    """Distinct logits of the first row of each call."""
    seen = [target.forward(call)[0] for call in rows]
    return 1 + sum(not any(bit_equal(a, b) for b in seen[:i]) for i, a in enumerate(seen) if i)


SOLO = [[ROWS[0]]] * 6
BATCHES = [[ROWS[0]], [ROWS[0], ROWS[2]], [ROWS[2], ROWS[0]][::-1], [ROWS[0]] * 4]
HISTORY = [[ROWS[0]], [ROWS[2]], [ROWS[0]]]


def test_pinned_routing_stops_a_router_tie(tmp_path: Path) -> None:
    target, fault = planted("router-tie", tmp_path)
    with fault:
        assert distinct(target, SOLO) > 1
        with pinned_routing(target.model) as routes:
            assert distinct(target, SOLO) == 1
            assert distinct(target, BATCHES) == 1
            assert routes.replayed > routes.recorded > 0
            made = [target.generate([ROWS[0]], max_new_tokens=6)[0].step_logits for _ in range(4)]
            assert all(bit_equal(m, made[0]) for m in made)
        assert distinct(target, SOLO) > 1
    with pytest.raises(DetdiagError), pinned_routing(random_model("dense", torch.float32)):
        pass


def test_capacity_off_stops_dropped_tokens(tmp_path: Path) -> None:
    target, fault = planted("expert-capacity", tmp_path)
    router = target.model.get_submodule("model.layers.1.mlp.gate")
    with fault:
        assert distinct(target, BATCHES) > 1
        with uncapped_experts(target.model) as names:
            assert names == ("model.layers.1.mlp.gate.capacity_factor",)
            assert distinct(target, BATCHES) == 1
        assert router.capacity_factor == 1.5 and "capacity_factor" not in vars(router)
        assert distinct(target, BATCHES) > 1


def test_stateless_stops_carried_state(tmp_path: Path) -> None:
    target, fault = planted("state", tmp_path)
    with fault:
        with stateless(target.model):
            first = target.forward([ROWS[0]])[0]
            target.forward([ROWS[2]])
            assert bit_equal(target.forward([ROWS[0]])[0], first)
        target.forward([ROWS[2]])
        assert not bit_equal(target.forward([ROWS[0]])[0], first)


def test_no_dropout_stops_dropout_left_on(tmp_path: Path) -> None:
    target, fault = planted("dropout", tmp_path)
    with fault:
        assert distinct(target, SOLO) > 1
        with no_dropout(target.model):
            assert distinct(target, SOLO) == 1
        assert distinct(target, SOLO) > 1
    target.model.model.layers[1].train()
    with no_dropout(target.model):
        assert not any(m.training for m in target.model.modules())
    assert target.model.model.layers[1].mlp.training


def test_no_dropout_in_attention_calls() -> None:
    q = torch.rand(1, 2, 5, 8)
    plain = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    with no_dropout(torch.nn.Linear(2, 2)):
        assert bit_equal(F.scaled_dot_product_attention(q, q, q, None, 0.5, True), plain)
        named = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5, is_causal=True)
        assert bit_equal(named, plain)
        assert bit_equal(F.alpha_dropout(q, 0.5, True), q)


def test_no_jitter_sets_and_restores() -> None:
    class Router(torch.nn.Linear):
        jitter_noise = 0.1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.jitter_noise > 0:
                x = x * torch.empty_like(x).uniform_(1 - self.jitter_noise, 1 + self.jitter_noise)
            return super().forward(x)

    model, x = torch.nn.Sequential(Router(4, 2)), torch.rand(3, 4)
    assert not bit_equal(model(x), model(x))
    with no_jitter(model) as names:
        assert names == ("0.jitter_noise",) and bit_equal(model(x), model(x))
    assert model[0].jitter_noise == 0.1 and "jitter_noise" not in vars(model[0])
