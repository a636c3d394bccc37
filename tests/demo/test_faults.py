"""Every demo fault does to the outputs what it claims, and the healthy control does nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from detdiag.demo import DEFAULT_FAULT, FAULTS, DemoCase, demo_path
from tests.demo.forwards import first_difference, gap, logits_of, module_outputs, same_bits

REPEATABLE = ("none", "batch-effect", "padding", "neighbour-scale", "expert-capacity", "tie")


@contextlib.contextmanager
def running(name: str, work: Path) -> Iterator[tuple[DemoCase, Any, list[list[int]]]]:
    """The case, its loaded model with the fault in it, and the prompts' token ids."""
    torch.set_num_threads(1)
    case = FAULTS[name].apply(work)
    model = AutoModelForCausalLM.from_pretrained(case.model_dir, dtype=getattr(torch, case.dtype))
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(case.model_dir)
    rows = [tokenizer(p.text)["input_ids"] for p in case.prompts if p.text]
    with case.patch(model) if case.patch else contextlib.nullcontext():
        yield case, model, rows


def greedy(model: Any, row: list[int], n: int = 24) -> list[int]:
    return model.generate(torch.tensor([row]), max_new_tokens=n)[0, len(row) :].tolist()


def test_catalogue_covers_every_layer_and_has_a_control() -> None:
    layers = {fault.layer for fault in FAULTS.values()}
    assert layers == {None, "config", "input", "batch", "operator", "decode", "moe", "version"}
    assert all(name == fault.name for name, fault in FAULTS.items())
    assert DEFAULT_FAULT in FAULTS


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_case_and_catalogue_agree(name: str, tmp_path: Path) -> None:
    case = FAULTS[name].apply(tmp_path)
    assert case.name == name
    assert case.expected_layer == FAULTS[name].layer
    assert (case.model_dir / "model.safetensors").is_file()
    assert case.prompts


@pytest.mark.parametrize("kind", ["dense", "moe"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_invariant_serving_gives_the_solo_bits(kind: str, dtype: str, load_demo: Any) -> None:
    from detdiag.demo.invariant import batch_invariant

    model, tokenizer = load_demo(kind, dtype)
    rows = [tokenizer(p.text)["input_ids"] for p in FAULTS["none"].apply(Path()).prompts[:5]]
    plain = [logits_of(model, [row])[0] for row in rows]
    with batch_invariant(model):
        solo = [logits_of(model, [row])[0] for row in rows]
        together = logits_of(model, rows)
        right = logits_of(model, rows, pad=5, side="right")
        for i, row in enumerate(rows):
            assert same_bits(solo[i], together[i])
            assert same_bits(solo[i], right[i])
            copies = logits_of(model, [row] * 8, pad=3)
            assert all(same_bits(solo[i], copy) for copy in copies)
    again = logits_of(model, rows[:1])[0]
    assert same_bits(again, plain[0])
    assert max(gap(a, b) for a, b in zip(solo, plain, strict=True)) < 0.5


def test_invariant_serving_generates_the_same_alone_and_together(load_demo: Any) -> None:
    from detdiag.demo.invariant import batch_invariant

    for kind in ("dense", "moe"):
        model, tokenizer = load_demo(kind, "bfloat16")
        texts = [p.text for p in FAULTS["none"].apply(Path()).prompts[:4]]
        with batch_invariant(model):
            ids = tokenizer(texts, return_tensors="pt", padding=True)
            together = model.generate(**ids, max_new_tokens=8)[:, ids["input_ids"].shape[1] :]
            for text, row in zip(texts, together.tolist(), strict=True):
                alone = greedy(model, tokenizer(text)["input_ids"], 8)
                assert row[: len(alone)] == alone


@pytest.mark.parametrize("name", REPEATABLE)
def test_identical_forwards_repeat(name: str, tmp_path: Path) -> None:
    with running(name, tmp_path) as (_, model, rows):
        assert first_difference(model, rows[0], tries=4) is None


@pytest.mark.parametrize("name", ["race", "race-attention", "dropout", "two-faults"])
def test_operator_faults_differ_first_in_the_named_module(name: str, tmp_path: Path) -> None:
    with running(name, tmp_path) as (case, model, rows):
        assert first_difference(model, rows[3]) == case.expected_module


def test_batch_effect_needs_another_batch_size(tmp_path: Path) -> None:
    with running("batch-effect", tmp_path) as (case, model, rows):
        row = rows[3]
        solo = logits_of(model, [row])[0]
        changed = [not same_bits(solo, logits_of(model, [row] * n)[0]) for n in (2, 4, 8)]
        assert all(changed)
        assert case.expected_module in module_outputs(model, row)


def test_padding_is_far_beyond_rounding(tmp_path: Path) -> None:
    with running("padding", tmp_path) as (_, model, rows):
        solo = logits_of(model, rows[:1])[0]
        assert same_bits(solo, logits_of(model, rows[:1] * 4)[0])
        assert gap(solo, logits_of(model, rows[:1], pad=7)[0]) > 1.0


def test_shared_scale_follows_the_neighbours_not_the_size(tmp_path: Path) -> None:
    with running("neighbour-scale", tmp_path) as (_, model, rows):
        row = rows[3]
        solo = logits_of(model, [row])[0]
        assert same_bits(solo, logits_of(model, [row] * 4)[0])
        others = [r[: len(row)] for r in rows if len(r) >= len(row)]
        mixed = [logits_of(model, [row, *[o] * 3])[0] for o in others]
        assert any(gap(solo, m) > 0.1 for m in mixed)


def test_state_comes_from_earlier_calls(tmp_path: Path) -> None:
    with running("state", tmp_path) as (_, model, rows):
        first = logits_of(model, rows[3:4])[0]
        logits_of(model, rows[4:5])
        assert not same_bits(first, logits_of(model, rows[3:4])[0])
    with running("state", tmp_path) as (_, model, rows):
        assert same_bits(first, logits_of(model, rows[3:4])[0])


def test_tie_takes_either_of_two_equal_maxima(tmp_path: Path) -> None:
    with running("tie", tmp_path) as (_, model, rows):
        outs = {tuple(greedy(model, rows[5], 12)) for _ in range(5)}
    assert len(outs) > 1


def test_expert_capacity_drops_more_in_a_batch(tmp_path: Path) -> None:
    with running("expert-capacity", tmp_path) as (case, model, rows):
        seen: list[Any] = []
        gate = model.get_submodule(case.expected_module)
        handle = gate.register_forward_hook(lambda m, a, out: seen.append(out))
        row = rows[4]
        logits_of(model, [row])
        logits_of(model, [row] * 4)
        handle.remove()
        (logits, weights, experts), (many_logits, many_weights, many_experts) = seen
        last = slice(3 * len(row), 4 * len(row))
        assert same_bits(logits, many_logits[last])
        assert torch.equal(experts, many_experts[last])
        assert int((many_weights[last] == 0).sum()) > int((weights == 0).sum())


def test_router_ties_pick_other_experts_of_equal_score(tmp_path: Path) -> None:
    with running("router-tie", tmp_path) as (case, model, rows):
        seen: list[Any] = []
        gate = model.get_submodule(case.expected_module)
        handle = gate.register_forward_hook(lambda m, a, out: seen.append(out))
        for _ in range(6):
            for row in rows:
                logits_of(model, [row])
        handle.remove()
    n, changed = len(rows), 0
    for i in range(n):
        runs = seen[i::n]
        scores = runs[0][0].float().softmax(-1).bfloat16()
        for run in runs[1:]:
            assert same_bits(run[0], runs[0][0])
            a, b = (scores.gather(1, r[2]).sort(-1).values for r in (runs[0], run))
            assert torch.equal(a, b)
            changed += int((run[2].sort(-1).values != runs[0][2].sort(-1).values).any())
    assert changed > 0


def test_sampling_draws_and_the_greedy_control_does_not(tmp_path: Path) -> None:
    with running("sampling", tmp_path) as (_, model, rows):
        assert len({tuple(greedy(model, rows[0])) for _ in range(5)}) > 1
        drawn = model.generate(torch.tensor(rows[:1]), max_new_tokens=8, do_sample=False)
        assert drawn.tolist() == model.generate(
            torch.tensor(rows[:1]), max_new_tokens=8, do_sample=False
        ).tolist()  # fmt: skip


def test_bom_is_three_bytes_in_one_request(tmp_path: Path) -> None:
    a, b = (p.read_bytes() for p in FAULTS["bom"].apply(tmp_path).scratch["requests"])
    assert b == a.replace(b'"where', b'"\xef\xbb\xbfwhere')
    assert len(b) == len(a) + 3


def test_bom_changes_the_answer(tmp_path: Path) -> None:
    with running("bom", tmp_path) as (case, model, _):
        tokenizer = AutoTokenizer.from_pretrained(case.model_dir)
        logits = []
        for file in case.scratch["requests"]:
            ids = tokenizer.apply_chat_template(
                json.loads(file.read_bytes())["messages"], add_generation_prompt=True,
                return_dict=True,
            )["input_ids"]  # fmt: skip
            logits.append(logits_of(model, [ids])[0][-1])
        assert gap(*logits) > 0.05


def test_template_clock_renders_differently_each_time(tmp_path: Path) -> None:
    case = FAULTS["template-clock"].apply(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(case.model_dir)
    messages = list(case.prompts[0].messages or ())
    renders = {tokenizer.apply_chat_template(messages, tokenize=False) for _ in range(3)}
    assert len(renders) == 3


def test_changed_weight_moves_logits_by_rounding_only(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    case = FAULTS["weights"].apply(tmp_path)
    new, old = (load_file(p / "model.safetensors") for p in (case.model_dir, demo_path("dense")))
    steps = {k: (new[k].view(torch.int16).int() - old[k].view(torch.int16).int()) for k in new}
    assert sum(int(s.abs().sum()) for s in steps.values()) == 1
    row = [0, 270, 300, 310]
    a, b = (
        logits_of(AutoModelForCausalLM.from_pretrained(p).eval(), [row])[0]
        for p in (case.model_dir, demo_path("dense"))
    )
    assert 0 < gap(a, b) < 0.5
    assert case.baseline is not None


def test_changed_tokenizer_cuts_the_prompts_elsewhere(tmp_path: Path) -> None:
    case = FAULTS["tokenizer"].apply(tmp_path)
    new, old = (AutoTokenizer.from_pretrained(p) for p in (case.model_dir, demo_path("dense")))
    texts = [p.text for p in case.prompts]
    assert sum(new(t)["input_ids"] != old(t)["input_ids"] for t in texts) >= 4
    assert all(new.decode(new(t)["input_ids"], skip_special_tokens=True) == t for t in texts)


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_patch_leaves_the_model_as_it_was(name: str, tmp_path: Path) -> None:
    case = FAULTS[name].apply(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(case.model_dir).eval()
    classes = [type(m) for m in model.modules()]
    attention = model.config._attn_implementation
    with case.patch(model) if case.patch else contextlib.nullcontext():
        assert [type(m) for m in model.modules()] != classes
    assert [type(m) for m in model.modules()] == classes
    assert model.config._attn_implementation == attention
