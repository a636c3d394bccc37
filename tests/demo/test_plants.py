"""Every planted model misbehaves as it claims, shown with plain transformers calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from tests.demo.forwards import first_difference, gap, logits_of, same_bits
from tests.plants import NAMES, Plant, make

RACES = (
    "race-permuted",
    "race-urandom",
    "race-threads",
    "race-clock",
    "race-attention",
    "dropout",
    "stuck-in-training",
)


def load(plant: Plant) -> tuple[Any, list[list[int]]]:
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(
        plant.path, trust_remote_code=plant.trust_remote_code, dtype=getattr(torch, plant.dtype)
    )
    tokenizer = AutoTokenizer.from_pretrained(plant.path)
    return model.eval(), [tokenizer(p)["input_ids"] for p in plant.prompts]


def other_rows(row: list[int], n: int) -> list[list[int]]:
    """``n`` neighbours of the same length with other content."""
    source = torch.Generator().manual_seed(5)
    return torch.randint(5, 700, (n, len(row)), generator=source).tolist()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", RACES)
def test_race_differs_on_identical_input_first_in_its_module(
    name: str, dtype: str, tmp_path: Path
) -> None:
    plant = make(name, tmp_path, dtype=dtype)
    model, rows = load(plant)
    first = first_difference(model, rows[0])
    assert first is not None
    assert first.startswith(plant.modules[0])


@pytest.mark.parametrize("name", ["race-urandom", "token-count-norm", "batch-int8", "no-mask"])
def test_same_weights_without_the_code_repeat(name: str, tmp_path: Path) -> None:
    plant = make(name, tmp_path)
    _, rows = load(plant)
    plain = LlamaForCausalLM.from_pretrained(plant.path).eval()
    assert type(plain).__name__ == "LlamaForCausalLM"
    assert first_difference(plain, rows[0], tries=4) is None
    assert gap(logits_of(plain, rows[:1])[0], logits_of(plain, rows[:1], pad=5)[0]) < 1e-4


@pytest.mark.parametrize(("name", "n"), [("token-count-norm", 8), ("token-count-norm-16", 2)])
def test_token_count_changes_the_norm(name: str, n: int, tmp_path: Path) -> None:
    model, rows = load(make(name, tmp_path))
    row = rows[0]
    solo = logits_of(model, [row])[0]
    assert same_bits(solo, logits_of(model, [row])[0])
    assert gap(solo, logits_of(model, [row] * n)[0]) > 1e-3


def test_int8_scale_depends_on_the_neighbours_alone(tmp_path: Path) -> None:
    model, rows = load(make("batch-int8", tmp_path))
    row = rows[0]
    copies = logits_of(model, [row] * 4)[0]
    assert gap(logits_of(model, [row])[0], copies) < 1e-4
    assert gap(copies, logits_of(model, [row, *other_rows(row, 3)])[0]) > 1e-3


@pytest.mark.parametrize("name", ["no-mask", "no-positions"])
def test_padding_moves_the_logits_far_beyond_rounding(name: str, tmp_path: Path) -> None:
    model, rows = load(make(name, tmp_path))
    solo = logits_of(model, rows[:1])[0]
    assert same_bits(solo, logits_of(model, rows[:1])[0])
    assert gap(solo, logits_of(model, rows[:1], pad=7)[0]) > 1e-2


@pytest.mark.parametrize("name", ["state-previous-call", "state-counter", "state-peak"])
def test_state_repeats_from_the_start_and_not_after_another_request(
    name: str, tmp_path: Path
) -> None:
    plant = make(name, tmp_path)
    a, rows = load(plant)
    b, _ = load(plant)
    first, other = rows[0], other_rows(rows[0], 1)[0]
    fresh = logits_of(a, [first])[0]
    assert same_bits(fresh, logits_of(b, [first])[0])
    histories = []
    for model in (a, b):
        logits_of(model, [[t] for t in other])
        histories.append(logits_of(model, [first])[0])
    assert same_bits(*histories)
    assert gap(fresh, histories[0]) > 1e-3


def test_tie_gives_equal_logits_and_another_token(tmp_path: Path) -> None:
    plant = make("tie-by-draw", tmp_path)
    model, rows = load(plant)
    tokens, logits = [], []
    for _ in range(12):
        out = model.generate(
            torch.tensor(rows[:1]),
            max_new_tokens=1,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens.append(int(out.sequences[0, -1]))
        logits.append(out.logits[0])
    assert len(set(tokens)) > 1
    assert all(same_bits(x, logits[0]) for x in logits)
    assert all(float(logits[0][0, t]) == float(logits[0].max()) for t in tokens)


def routed(model: Any, rows: list[list[int]], plant: Plant) -> dict[str, Any]:
    """What entered and left the planted block's router and experts in one forward."""
    seen: dict[str, Any] = {}
    block = model.get_submodule(plant.modules[0])
    handles = [
        block.gate.register_forward_hook(lambda m, a, out: seen.update(router=out)),
        block.experts.register_forward_pre_hook(lambda m, a: seen.update(used=a)),
    ]
    logits_of(model, rows)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("name", ["capacity-block", "capacity-router"])
def test_capacity_drops_in_a_batch_at_equal_router_scores(name: str, tmp_path: Path) -> None:
    plant = make(name, tmp_path)
    model, rows = load(plant)
    row = rows[0][:6]
    n = len(row)
    solo, batch = routed(model, [row], plant), routed(model, [row] * 4, plant)
    last = slice(3 * n, 4 * n)
    assert gap(solo["router"][0], batch["router"][0][last]) < 1e-4
    assert torch.equal(solo["router"][2], batch["router"][2][last])
    dropped_solo = int((solo["used"][2] == 0).sum())
    dropped_batch = int((batch["used"][2][last] == 0).sum())
    assert dropped_batch > dropped_solo


def test_router_ties_change_experts_between_reruns(tmp_path: Path) -> None:
    plant = make("router-ties", tmp_path)
    model, rows = load(plant)
    runs = [routed(model, rows[:1], plant)["router"] for _ in range(8)]
    assert all(same_bits(run[0], runs[0][0]) for run in runs)
    chosen = {tuple(run[2].sort(-1).values.flatten().tolist()) for run in runs}
    assert len(chosen) > 1
    probabilities = runs[0][0].float().softmax(-1).bfloat16()
    for run in runs[1:]:
        a = probabilities.gather(1, runs[0][2]).sort(-1).values
        b = probabilities.gather(1, run[2]).sort(-1).values
        assert torch.equal(a, b)


def test_router_ties_by_place_repeat_and_differ_between_rows(tmp_path: Path) -> None:
    plant = make("router-ties-by-place", tmp_path)
    model, rows = load(plant)
    row, n = rows[0][:7], 7
    first, again = (routed(model, [row] * 2, plant)["router"] for _ in range(2))
    assert torch.equal(first[2], again[2])
    left, right = first[2][:n].sort(-1).values, first[2][n:].sort(-1).values
    assert gap(first[0][:n], first[0][n:]) < 1e-4
    assert not torch.equal(left, right)


def test_sampling_is_in_the_files_and_draws(tmp_path: Path) -> None:
    model, rows = load(make("sampling", tmp_path))
    outs = {tuple(model.generate(torch.tensor(rows[:1]), max_new_tokens=8)[0].tolist()) for _ in range(6)}  # fmt: skip # noqa: E501
    assert len(outs) > 1


def test_one_ulp_is_one_bit_pattern_apart(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    plant = make("weights-ulp", tmp_path, dtype="bfloat16")
    assert plant.baseline is not None
    new, old = (load_file(p / "model.safetensors") for p in (plant.path, plant.baseline))
    assert new.keys() == old.keys()
    changed = {
        k: (new[k].view(torch.int16).int() - old[k].view(torch.int16).int()).abs() for k in new
    }
    assert sum(int(d.sum()) for d in changed.values()) == 1


def test_changed_tokenizer_cuts_the_prompts_elsewhere(tmp_path: Path) -> None:
    plant = make("tokenizer", tmp_path)
    assert plant.baseline is not None
    new, old = (AutoTokenizer.from_pretrained(p) for p in (plant.path, plant.baseline))
    for prompt in plant.prompts:
        assert new(prompt)["input_ids"] != old(prompt)["input_ids"]
        assert new.decode(new(prompt)["input_ids"]) == old.decode(old(prompt)["input_ids"])


def test_two_faults_are_both_there(tmp_path: Path) -> None:
    plant = make("two-sampling-and-race", tmp_path)
    model, rows = load(plant)
    assert model.generation_config.do_sample
    assert first_difference(model, rows[0]) in plant.modules


def test_healthy_row_does_not_notice_its_batch(tmp_path: Path) -> None:
    model, rows = load(make("healthy", tmp_path))
    row = rows[0]
    solo = logits_of(model, [row])[0]
    runs = [
        logits_of(model, [row])[0],
        logits_of(model, [*other_rows(row, 3), row])[-1],
        logits_of(model, [row, row + row])[0],
        logits_of(model, [row], pad=7)[0],
        logits_of(model, [row], pad=7, side="right")[0],
    ]
    assert all(same_bits(run, solo) for run in runs)
    alone = model.generate(torch.tensor([row]), max_new_tokens=6)[0].tolist()
    pair = model.generate(torch.tensor([row, other_rows(row, 1)[0]]), max_new_tokens=6)
    assert pair[0].tolist() == alone


@pytest.mark.parametrize("name", NAMES)
def test_every_plant_can_stand_on_a_trained_model(name: str, tmp_path: Path) -> None:
    plant = make(name, tmp_path, base="demo", dtype="bfloat16")
    model, rows = load(plant)
    assert next(model.parameters()).dtype == torch.bfloat16
    assert torch.isfinite(logits_of(model, rows[:1])[0]).all()
