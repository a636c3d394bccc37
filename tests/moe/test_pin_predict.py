"""Pinned routing at its three levels, and the flip prediction against simulation."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from detdiag.moe.capture import capture
from detdiag.moe.decisions import Decisions, decisions, routes
from detdiag.moe.discover import find_routers
from detdiag.moe.experiment import Setup, run
from detdiag.moe.implementations import compare_implementations
from detdiag.moe.pin import LEVELS, _follow, _in_place, pinned_logits
from detdiag.moe.predict import expected_flips, gaps, predict
from tests.moe import plants

ROW = tuple(range(3, 20))


def test_pinning_a_run_to_itself_changes_no_bit() -> None:
    target = plants.target(plants.mixtral())
    routers = find_routers(target.model)
    base = run(target, routers, Setup("solo", (ROW,)))
    for level in LEVELS:
        logits = pinned_logits(target, routers, base.setup, base, level)
        assert logits is not None and torch.equal(logits, base.logits)


def test_pinned_ids_undo_a_change_of_the_router() -> None:
    """Swap two experts' router rows: ids move, and pinning brings the first run's experts back."""
    target = plants.target(plants.mixtral())
    routers = find_routers(target.model)
    base = run(target, routers, Setup("solo", (ROW,)))
    gate = target.model.get_submodule(routers[1].path)
    with torch.no_grad():
        gate.weight.add_(torch.randn_like(gate.weight) * 0.05)
    moved = run(target, routers, base.setup)
    gap = (moved.logits - base.logits).norm()
    assert not torch.equal(moved.logits, base.logits)
    left = {}
    for level in LEVELS:
        logits = pinned_logits(target, routers, base.setup, base, level)
        assert logits is not None
        left[level] = float((logits - base.logits).norm())
    # Ids alone leave the weights to the changed router; with the weights nothing is left.
    assert 0 < left["ids"] < gap
    assert left["order"] == 0
    assert left["weights"] == pytest.approx(0, abs=1e-5 * float(gap))


def test_slots_keep_what_they_hold_and_weights_follow() -> None:
    pinned, current = torch.tensor([[4, 1, 7]]), torch.tensor([[1, 2, 4]])
    placed = _in_place(pinned, current)
    assert placed.tolist() == [[1, 7, 4]]
    weights = torch.tensor([[0.4, 0.1, 0.7]])
    assert torch.equal(_follow(weights, pinned, placed), torch.tensor([[0.1, 0.7, 0.4]]))


def one_choice(scores: Tensor, k: int) -> Decisions:
    return Decisions(scores.topk(k, dim=-1).indices, scores, scores, None)


def test_gap_is_between_rank_k_and_the_next() -> None:
    scores = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.25, 0.25, 0.3, 0.2]], dtype=torch.float64)
    read = gaps(one_choice(scores, 2))
    assert read is not None
    gap, low, rival = read
    assert gap.tolist() == pytest.approx([0.1, 0.0])
    assert (int(low[0]), int(rival[0])) == (2, 3)


def test_expected_flips_match_a_simulation() -> None:
    draw = random.Random(5)
    margins = [abs(draw.gauss(0, 1)) for _ in range(400)]
    changes = [draw.choice([0.0, 0.0, -0.25, 0.25, 0.5]) for _ in range(500)]
    rounds = 400
    flips = (
        sum(
            m + draw.choice([1, -1]) * draw.choice(changes) < 0
            for m in margins
            for _ in range(rounds)
        )
        / rounds
    )
    got = expected_flips(torch.tensor(margins), torch.tensor(changes))
    assert got == pytest.approx(flips, rel=0.05)


def test_an_exact_tie_flips_only_where_something_moves() -> None:
    tie = torch.zeros(1)
    assert expected_flips(tie, torch.zeros(8)) == 0.0
    assert expected_flips(tie, torch.tensor([0.1, -0.1])) == 0.5


def test_prediction_of_noisy_scores_fits_what_is_observed() -> None:
    torch.manual_seed(2)
    left = torch.randn(4000, 8, dtype=torch.float64)
    right = left + 0.05 * torch.randn_like(left)
    made = predict([(one_choice(left, 2), one_choice(right, 2))])
    assert made is not None and made.places == 4000
    # Gaps see two independent changes: their noise is sqrt(2) times that of one score.
    assert made.noise == pytest.approx(0.05 * 2**0.5, rel=0.05)
    assert made.observed > 50
    assert made.expected == pytest.approx(made.observed, rel=0.35)


def test_routes_carry_scores_weights_and_dtype() -> None:
    model = plants.mixtral(torch.bfloat16)
    routers = find_routers(model)
    with torch.no_grad(), capture(model, routers) as made:
        model(input_ids=torch.tensor([ROW]), use_cache=False)
    found = routes(made.calls[0], slice(0, len(ROW)))
    assert [r.position for r in found] == list(range(len(ROW)))
    for position, route in enumerate(found):
        assert route.scores is not None and route.weights is not None
        best = sorted(range(plants.EXPERTS), key=lambda e: -route.scores[e])[: plants.TOP_K]
        assert set(route.experts) == set(best)
        assert sum(route.weights) == pytest.approx(1, abs=0.02)
        assert route.score_dtype == "float32"
        assert route.scores == tuple(decisions(made.calls[0]).scores[position].tolist())  # type: ignore[index]


def test_forward_is_restored_after_an_error() -> None:
    model = plants.mixtral()
    routers = find_routers(model)
    blocks = [model.get_submodule(r.block_path) for r in routers]
    with pytest.raises(RuntimeError, match="stop"), capture(model, routers):
        raise RuntimeError("stop")
    assert all("forward" not in b.__dict__ for b in blocks)
    assert not any(
        b._forward_pre_hooks for b in (model.get_submodule(r.experts_path) for r in routers)
    )


def test_experts_implementations_are_compared_and_put_back() -> None:
    target = plants.target(plants.mixtral())
    before = target.model.config._experts_implementation
    rows = compare_implementations(target, ROW, 3)
    assert {r["value"] for r in rows} >= {"eager", "batched_mm"}
    assert all(r["n"] == len(ROW) and r["bit_equal"] == (r["max_abs_logit"] == 0) for r in rows)
    assert target.model.config._experts_implementation == before
