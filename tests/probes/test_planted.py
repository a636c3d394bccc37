"""Planted faults: the probes must name rule and module, and name nothing on a healthy model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from detdiag.layers import Layer
from detdiag.probes.registry import load_probe
from detdiag.targets.local import LocalTarget
from tests.probes import plants, tiny

BLOCK = "model.layers.1"


def walk(made: LocalTarget, *layers: Layer, **plan: Any) -> tiny.Seen:
    context = tiny.context(made, **plan)
    return tiny.Seen(e for layer in layers for e in load_probe(layer).run(context))


def planted(plant: Callable[[Any], Any], kind: str = "llama", n_prompts: int = 1) -> LocalTarget:
    made = tiny.target(kind)
    plant(made.model)
    return tiny.around(made.model, n_prompts)


def forwards_agree(made: LocalTarget, sizes: tuple[int, ...]) -> bool:
    """Plain torch: is a row the same to the bit alone and in batches of copies?"""
    ids = torch.tensor([made.encode(made.prompts[0])])
    with torch.no_grad():
        solo = made.model(ids).logits[0]
        return all(
            torch.equal(made.model(ids.expand(n, -1)).logits[i], solo)
            for n in sizes
            for i in range(n)
        )


def generations_agree(made: LocalTarget, sizes: tuple[int, ...]) -> bool:
    """The library alone: are the logits of ``generate`` the same in batches of copies?"""
    ids = torch.tensor([made.encode(made.prompts[0])])

    def first_row(n: int) -> torch.Tensor:
        made_now = made.model.generate(
            input_ids=ids.expand(n, -1), attention_mask=torch.ones(n, ids.shape[1]),
            max_new_tokens=6, do_sample=False, pad_token_id=0,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        return torch.stack([step[0] for step in made_now.logits])

    solo = first_row(1)
    return all(torch.equal(first_row(n), solo) for n in sizes)


def own_effects(kind: str = "llama") -> set[str]:
    """Rules that a healthy model earns on this processor: a matrix-vector product and a
    matrix-matrix product may round differently, so a batch may truly differ from a solo run."""
    made = tiny.target(kind, n_prompts=1)
    agree = forwards_agree(made, (2, 4)) and generations_agree(made, (2, 4))
    return set() if agree else {"batch.size-sensitive"}


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3"])
def test_healthy_model(kind: str) -> None:
    made = tiny.target(kind, n_prompts=1)
    seen = walk(made, "batch", "operator", "decode")
    assert seen.rules() == own_effects(kind)
    assert seen.finding("operator.not-repeatable").outcome == "passed"
    assert len(seen.margins) == 6
    assert [s.state for s in seen.status] == ["done", "done", "done"]


@pytest.mark.parametrize("path", [f"{BLOCK}.mlp", "model.layers.0.self_attn"])
def test_race(path: str) -> None:
    seen = walk(planted(lambda m: plants.race(m, path)), "batch", "operator")
    assert seen.rules() == {"operator.race"}
    found = seen.finding("operator.race")
    assert found.locus is not None and found.locus.module == path
    assert found.proven and found.explains == ("repeat",)


def test_dropout_left_on() -> None:
    made = planted(lambda m: plants.dropout_left_on(m, f"{BLOCK}.mlp"))
    seen = walk(made, "batch", "operator")
    assert seen.rules() == {"operator.stochastic"}
    found = seen.finding("operator.stochastic")
    assert found.locus is not None and found.locus.module == f"{BLOCK}.mlp"
    assert found.data["training_modules"] == [f"{BLOCK}.mlp.extra"]
    assert found.proven


def test_reduction_in_random_order() -> None:
    made = planted(lambda m: plants.random_order_sum(m, f"{BLOCK}.mlp"))
    seen = walk(made, "batch", "operator")
    assert seen.rules() == {"operator.stochastic"}
    assert seen.failed()[0].locus.module == f"{BLOCK}.mlp"  # type: ignore[union-attr]


def test_norm_that_follows_the_token_count() -> None:
    path = f"{BLOCK}.post_attention_layernorm"
    made = planted(lambda m: plants.token_count_norm(m, path))
    seen = walk(made, "batch", "operator")
    assert seen.rules() - own_effects() == {"batch.token-count"}
    found = seen.finding("batch.token-count")
    assert found.locus is not None and found.locus.module == path
    assert found.mechanism


def test_scale_shared_by_the_batch() -> None:
    path = "model.layers.0.mlp.down_proj"
    made = planted(lambda m: plants.shared_int8_scale(m, path))
    seen = walk(made, "batch", "operator")
    assert seen.rules() - own_effects() == {"batch.shared-scale"}
    found = seen.finding("batch.shared-scale")
    assert found.locus is not None and found.locus.module == path
    assert found.explains == ("neighbours",)
    assert found.proven


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_positions_that_ignore_padding(kind: str) -> None:
    seen = walk(planted(plants.ignores_position_ids, kind), "batch")
    assert seen.rules() - own_effects(kind) == {"batch.padding-positions"}
    assert seen.finding("batch.padding-positions").mechanism


@pytest.mark.parametrize("plant", [plants.carried_state, plants.last_request])
def test_state_carried_between_calls(plant: Callable[[Any, str], None]) -> None:
    made = planted(lambda m: plant(m, f"{BLOCK}.mlp"))
    seen = walk(made, "batch", "operator")
    assert seen.rules() == {"batch.state-carried"}
    found = seen.finding("batch.state-carried")
    assert found.locus is not None and found.locus.module == f"{BLOCK}.mlp"
    assert found.proven and "order" in found.explains
    assert any(f"{BLOCK}.mlp." in name for name in found.data["state"])


def test_race_and_norm_at_once() -> None:
    def plant(model: Any) -> None:
        plants.race(model, f"{BLOCK}.mlp")
        plants.token_count_norm(model, "model.layers.0.input_layernorm")

    seen = walk(planted(plant), "batch", "operator")
    assert seen.rules() == {"operator.race", "batch.token-count"}
    loci = {f.rule: f.locus.module for f in seen.failed() if f.locus}
    assert loci["operator.race"] == f"{BLOCK}.mlp"
    assert loci["batch.token-count"] == "model.layers.0.input_layernorm"


def test_dropout_and_shared_scale_at_once() -> None:
    def plant(model: Any) -> None:
        plants.dropout_left_on(model, "model.layers.0.self_attn")
        plants.shared_int8_scale(model, f"{BLOCK}.mlp.down_proj")

    seen = walk(planted(plant), "batch", "operator")
    assert seen.rules() == {"operator.stochastic", "batch.shared-scale"}


def test_state_and_race_at_once() -> None:
    def plant(model: Any) -> None:
        plants.carried_state(model, "model.layers.0.mlp")
        plants.race(model, f"{BLOCK}.mlp", rate=0.8)

    seen = walk(planted(plant), "batch", "operator")
    assert seen.rules() == {"batch.state-carried", "operator.race"}
    loci = {f.rule: f.locus.module for f in seen.failed() if f.locus}
    assert loci == {
        "batch.state-carried": "model.layers.0.mlp",
        "operator.race": f"{BLOCK}.mlp",
    }
