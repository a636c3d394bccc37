"""What the probes run, what they leave, and how they leave the process behind them."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
import torch

from detdiag.evidence.record import dumps, encode
from detdiag.layers import LAYERS
from detdiag.probes.child import run_child
from detdiag.probes.conditions import (
    base_condition,
    detail_conditions,
    padding_conditions,
    size_conditions,
)
from detdiag.probes.registry import BUDGET_SHARES, PROBES, load_probe
from detdiag.probes.runs import Reference
from detdiag.probes.toggles import toggles_for
from detdiag.targets.local import Prompt, load_local
from tests.probes import plants, tiny


def run(layer: Any, context: Any) -> tiny.Seen:
    return tiny.Seen(load_probe(layer).run(context))


def test_solo_only_varies_nothing() -> None:
    seen = run("batch", tiny.context(tiny.target(), batch_sizes=(1,)))
    assert seen.status[-1].state == "skipped"
    assert {o.factors["batch_size"] for o in seen.observations} == {1}
    assert len({o.factors["padded_length"] for o in seen.observations if o.query == "p1"}) == 1
    assert not [f for f in seen.findings if f.outcome == "passed"]


def test_no_time_left_says_what_was_left() -> None:
    context = tiny.context(tiny.target(), budget_s=-1.0)
    seen = run("batch", context)
    assert seen.status[-1].state == "out_of_budget"
    assert "batch of 4" in seen.status[-1].reason
    seen = run("operator", context)
    assert len([o for o in seen.observations if o.factors["batch_size"] == 1]) >= 5


def test_ten_reruns_stand_whatever_the_budget() -> None:
    context = tiny.context(tiny.target(n_prompts=1), budget_s=-1.0)
    seen = tiny.Seen([*run("batch", context).events, *run("operator", context).events])
    solo = [o for o in seen.observations if o.query == "p1:teacher-forced" and o.role == "trial"]
    assert len([o for o in solo if o.factors["batch_size"] == 1]) >= 11


def test_every_contrast_is_one_factor_apart() -> None:
    ref = Reference(Prompt("p", "x"), tuple(range(5, 20)), tuple(range(30, 40)))
    details = list(detail_conditions(ref, 2, [tuple(range(40, 60))], 96, 0))
    plain = [base_condition(ref), *size_conditions(ref, (1, 2, 8)), *padding_conditions(ref)]
    known = {c.name: c for c in [*plain, *details]}
    assert len(known) == 5 + 4
    for condition in known.values():
        for factor, against in condition.contrasts:
            a, b = condition.factors(0, 0), known[against].factors(0, 0)
            assert {k for k in a if a[k] != b[k]} == {factor}


def test_observations_of_a_query_share_their_factor_names() -> None:
    context = tiny.context(tiny.target(n_prompts=1))
    seen = tiny.Seen([*run("batch", context).events, *run("operator", context).events])
    trials = [o for o in seen.observations if o.role == "trial"]
    for query in {o.query for o in trials}:
        assert len({frozenset(o.factors) for o in trials if o.query == query}) == 1
    repeats: dict[Any, int] = {}
    for o in trials:
        key = (o.query, *sorted((k, str(v)) for k, v in o.factors.items() if k != "repeat"))
        repeats[key] = repeats.get(key, 0) + 1
    assert min(repeats.values()) >= 2
    assert len({o.id for o in seen.observations}) == len(seen.observations)


def test_events_are_json() -> None:
    context = tiny.context(tiny.target(n_prompts=1))
    for event in run("batch", context).events:
        assert dumps(encode(event))


def test_digests_follow_the_bits() -> None:
    seen = run("batch", tiny.context(tiny.target(n_prompts=1)))
    solo = [o for o in seen.observations if o.role == "trial" and o.factors["batch_size"] == 1]
    forced = [o for o in solo if o.surface == "hf.forward"]
    assert len({o.output.logit_digests for o in forced}) == 1
    assert forced[0].output.positions is not None
    assert len(forced[0].output.positions) == 6


def test_margins_by_another_road() -> None:
    made = tiny.target(n_prompts=1)
    seen = run("batch", tiny.context(made))
    ids = list(made.encode(made.prompts[0]))
    for margin in seen.margins:
        with torch.no_grad():
            logits = made.model(torch.tensor([ids])).logits[0, -1]
        best = sorted(logits.tolist(), reverse=True)
        assert margin.margin_logits == pytest.approx(best[0] - best[1], abs=1e-5)
        ids.append(int(logits.argmax()))


def test_global_state_is_left_as_it_was() -> None:
    made = tiny.target(n_prompts=1)
    before = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled,
        made.model.config._attn_implementation,
        torch.get_rng_state().tolist(),
        random.getstate(),
    )
    context = tiny.context(made)
    run("batch", context)
    run("operator", context)
    after = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.mkldnn.enabled,
        made.model.config._attn_implementation,
        torch.get_rng_state().tolist(),
        random.getstate(),
    )
    assert before == after
    assert not any(m._forward_hooks for m in made.model.modules())


@pytest.mark.parametrize("toggle", toggles_for(tiny.target()), ids=lambda t: f"{t.name}-{t.value}")
def test_each_switch_is_restored_after_an_error(toggle: Any) -> None:
    made = tiny.target()
    before = made.forward([(3, 4, 5)])[0]
    with pytest.raises(ZeroDivisionError), toggle.switch(made):
        made.forward([(3, 4, 5)])
        raise ZeroDivisionError
    assert torch.equal(made.forward([(3, 4, 5)])[0], before)


def test_switches_are_interventions_with_their_cost() -> None:
    context = tiny.context(tiny.target(n_prompts=1))
    seen = run("operator", context)
    rows = {(r["toggle"], r["value"]): r for r in seen.series["toggles"]}
    assert rows[("deterministic_algorithms", "on")]["bit_equal"] is True
    assert all(r["speed_ratio"] > 0 for r in rows.values() if r["bit_equal"] is not None)
    switched = [o for o in seen.observations if "attention_backend" in o.factors]
    assert switched and {o.role for o in switched} == {"intervention"}


def test_sampling_is_no_business_of_decode() -> None:
    made = tiny.target(n_prompts=1)
    made.generate_kwargs = {"do_sample": True}
    context = tiny.context(made)
    seen = tiny.Seen([*run("batch", context).events, *run("decode", context).events])
    assert seen.status[-1].state == "skipped"
    assert not seen.failed()
    free = [o for o in seen.observations if o.surface == "hf.generate_kwargs"]
    assert {o.factors["batch_size"] for o in free} == {1}


def test_user_arguments_with_a_length_and_a_config() -> None:
    made = tiny.target(n_prompts=1)
    call = {"max_new_tokens": 50, "generation_config": {"do_sample": False}}
    made.generate_kwargs = call
    context = tiny.context(made, generate_kwargs=call)
    seen = tiny.Seen([*run("batch", context).events, *run("decode", context).events])
    assert {len(o.output.token_ids or ()) for o in seen.observations} == {6}


def test_greedy_call_that_draws_is_named() -> None:
    """A sampler that flips a coin between two tokens whose logits tie exactly."""
    made = tiny.target(n_prompts=1)
    with torch.no_grad():
        made.model.lm_head.weight[1::2] = made.model.lm_head.weight[0::2]
    plain = type(made.model).generate

    class Drawing(type(made.model)):  # type: ignore[misc]
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            out = plain(self, *args, **kwargs)
            width = kwargs["input_ids"].shape[1]
            coins = torch.randint(0, 2, out.sequences[:, width:].shape)
            out.sequences[:, width:] = (out.sequences[:, width:] // 2) * 2 + coins
            return out

    made.model.__class__ = Drawing
    seen = run("decode", tiny.context(tiny.around(made.model, 1)))
    assert "decode.sampler-consumes-rng" in seen.rules()
    assert seen.finding("decode.sampler-consumes-rng").proven


def test_greedy_decode_passes() -> None:
    context = tiny.context(tiny.target(n_prompts=1))
    run("batch", context)
    seen = run("decode", context)
    assert not seen.failed()
    assert seen.finding("decode.not-argmax").outcome == "passed"
    assert seen.finding("decode.exact-tie").evidence[0].n == 6


def test_child_process_gives_the_same_bits() -> None:
    from detdiag.demo import demo_path

    made = load_local(demo_path("dense"))
    row = tuple(range(20, 32))
    here = made.forward([row])[0][4:]
    child = run_child(made.load_args, [row], 4, timeout_s=300)
    assert child.error is None
    assert child.logits is not None and torch.equal(child.logits, here)
    assert child.digests[0] == child.digests[1]


def test_every_layer_has_a_probe_and_a_share() -> None:
    assert tuple(layer for layer, *_ in PROBES) == LAYERS
    assert sum(BUDGET_SHARES.values()) == pytest.approx(1.0)


def test_a_slow_model_stays_near_its_budget() -> None:
    made = tiny.target(n_prompts=1)
    plants.after(made.model, "model.embed_tokens", lambda _, out: time.sleep(0.01) or out)
    context = tiny.context(made, budget_s=2.0, batch_sizes=(1, 2, 4, 8))
    began = time.monotonic()
    run("batch", context)
    assert time.monotonic() - began < 6.0
