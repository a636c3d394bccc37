"""The judge's parts against values worked out by another road."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detdiag.evidence.case import Case
from detdiag.evidence.observation import Candidate, Observation, Output, Position
from detdiag.verdict import decide
from detdiag.verdict.endpoint.arms import trend_p, unit_permutation_p
from detdiag.verdict.endpoint.idle import idle_summary
from detdiag.verdict.endpoint.masking import masked
from detdiag.verdict.endpoint.numerics import fingerprint, lattice_step
from detdiag.verdict.endpoint.samples import read_samples
from detdiag.verdict.endpoint.temperature import choices, effective_temperature

_NUMBER = itertools.count()


def reply(text: str, *, arm: str = "idle", unit: str = "", query: str = "q", **more: Any) -> Any:
    """An observation as the prober writes it; ``more`` are factors."""
    number = next(_NUMBER)
    context = {"arm": arm, "unit": unit or f"u{number}", **more.pop("context", {})}
    factors = {"concurrency": 1, "connection": "c0", "time": float(number), **more}
    return Observation(
        f"o{number}", query, request={"messages": [], "temperature": 0},
        output=Output(text=text), factors=factors, response={"context": context},
    )  # fmt: skip


def verdict_of(observations: Sequence[Observation], **method: Any) -> dict[str, Any]:
    case = Case(
        tuple(observations), target={"kind": "endpoint"}, method=method,
        factor_layers={"connection": "version", "session": "version"},
    )  # fmt: skip
    return decide(case).to_dict()["verdict"]


def burst(texts: Sequence[str], unit: str, witness: str = "metrics") -> list[Observation]:
    context = {"witness": witness, "running": 8, "size": 8, "look": 1}
    factors: dict[str, Any] = {} if witness == "none" else {"concurrency": 8}
    return [reply(t, arm="burst", unit=unit, context=context, **factors) for t in texts]


def idle(n: int, text: str = "a") -> list[Observation]:
    return [reply(text, unit=f"i{i // 4}") for i in range(n)]


def starts(known: bool) -> list[Observation]:
    """Cold starts that agree with their warm repeats; ``known``: the lever works."""
    return [
        reply(
            "a", arm="warm" if turn else "cold", unit=f"k{salt}",
            context={"salt": f"k{salt}", "lever": "a leading line", "lever_known": known},
        )
        for salt in range(4)
        for turn in range(4)
    ]  # fmt: skip


def test_load_needs_bursts_not_replies() -> None:
    """Ten new answers in one burst are one event; in ten bursts they are ten."""
    one = idle(40) + [o for i in range(10) for o in burst("bbbb" if i == 0 else "aaaa", f"b{i}")]
    many = idle(40) + [o for i in range(10) for o in burst("abba", f"b{i}")]
    assert verdict_of(one)["status"] == "inconclusive"
    assert "too few" in verdict_of(one)["sentence"]
    found = verdict_of(many)
    assert (found["layer"], found["rule"]) == ("batch", "batch.load-sensitive")
    assert found["confidence"] == "confirmed"


@pytest.mark.parametrize(("witness", "sure"), [("metrics", "confirmed"), ("overlap", "likely")])
def test_the_witness_decides_how_sure(witness: str, sure: str) -> None:
    found = verdict_of(idle(40) + [o for i in range(8) for o in burst("bbbb", f"b{i}", witness)])
    assert found["confidence"] == sure


def test_without_a_witness_load_is_open() -> None:
    found = verdict_of(idle(40) + [o for i in range(8) for o in burst("bbbb", f"b{i}", "none")])
    assert found["status"] == "inconclusive"
    assert set(found["confounded"]) == {"concurrency", "replica"}


def test_equal_bursts_without_a_witness_leave_the_layer_untested() -> None:
    found = verdict_of(idle(40) + [o for i in range(8) for o in burst("aaaa", f"b{i}", "none")])
    assert found["status"] == "clean"
    assert "batch" in found["untested"]


def test_a_restless_idle_arm_is_never_load() -> None:
    """Two hidden replicas: the burst arm differs as much as the idle arm does."""
    random_texts = random.Random(3)
    mixed = [reply(random_texts.choice("ab"), unit=f"i{i // 4}") for i in range(40)]
    bursts = [o for i in range(8) for o in burst(random_texts.choices("ab", k=4), f"b{i}")]
    found = verdict_of(mixed + bursts)
    assert found["status"] == "inconclusive"
    assert set(found["confounded"]) == {"replica", "other tenants' load"}


def test_connections_that_are_constant_in_themselves() -> None:
    mixed = [reply("ab"[i % 2], connection=f"c{i % 4}", unit=f"i{i // 4}") for i in range(24)]
    found = verdict_of(mixed)
    assert found["rule"] == "version.replica-behind-balancer"
    assert found["confidence"] == "likely"


def told_sole(replies: Sequence[Observation]) -> dict[str, Any]:
    """The verdict where the server's counter shows that every request was ours."""
    from detdiag.evidence.finding import Finding

    sole = {"sole_tenant": True}
    told = Finding("version", "version.server-tenancy", "not_applicable", "", data=sole)
    layers = {"connection": "version"}
    case = Case(tuple(replies), (told,), target={"kind": "endpoint"}, factor_layers=layers)
    return decide(case).to_dict()["verdict"]


def jitter(n: int) -> list[Observation]:
    """One text whose log-probabilities move a little from reply to reply."""
    chance = random.Random(1)
    out = []
    for i in range(n):
        value = -0.1 - chance.choice((0.0, 0.002, 0.004))
        top = (Candidate("a", None, value), Candidate("b", None, -3.0))
        output = Output(text="a", positions=(Position("a", None, value, top),))
        out.append(replace(reply("a", unit=f"i{i // 4}"), output=output))
    return out


def test_a_sole_tenant_makes_it_the_operator() -> None:
    found = told_sole(jitter(40))
    assert (found["layer"], found["rule"]) == ("operator", "operator.not-repeatable")
    assert verdict_of(jitter(40))["status"] == "inconclusive"


def test_a_sole_tenant_seen_by_its_text_may_as_well_draw() -> None:
    chance = random.Random(1)
    found = told_sole([reply(chance.choice("abc"), unit=f"i{i // 4}") for i in range(40)])
    assert found["status"] == "inconclusive"
    assert set(found["confounded"]) == {"sampler", "operator"}


def test_answers_that_go_with_cached_tokens_need_one_server_only() -> None:
    """Two replicas of other versions count other cached tokens: the same record."""
    replies = [
        reply("ab"[i % 3 == 0], unit=f"i{i // 4}", cached_tokens=32 if i % 3 else 48)
        for i in range(40)
    ]
    found = verdict_of(replies)
    assert found["status"] == "inconclusive"
    assert set(found["confounded"]) == {"cached_tokens", "replica"}
    sole = told_sole(replies)
    assert (sole["layer"], sole["rule"]) == ("batch", "batch.prefix-reuse")


@pytest.mark.parametrize(("known", "outcome"), [(True, "passed"), (False, "skipped")])
def test_a_cold_start_that_nobody_confirms_tests_nothing(known: bool, outcome: str) -> None:
    from detdiag.verdict.endpoint.cache_arms import cache_finding, cache_result

    result = cache_result(read_samples(starts(known)))
    assert result is not None
    assert cache_finding(result, 1.0).outcome == outcome


@pytest.mark.parametrize(
    ("texts", "witness", "outcome"),
    [("bbbb", "metrics", "passed"), ("aaaa", "none", "inconclusive")],
)
def test_cold_starts_that_agree_clear_the_cache_where_load_is_known(
    texts: str, witness: str, outcome: str
) -> None:
    """Where load has no witness they must not clear the whole layer."""
    bursts = [o for i in range(8) for o in burst(texts, f"b{i}", witness)]
    case = Case((*idle(40), *bursts, *starts(True)), target={"kind": "endpoint"})
    [batch] = [r for r in decide(case).layers if r.layer == "batch"]
    found = {f.rule: f.outcome for f in batch.findings}
    assert found["batch.prefix-reuse"] == outcome
    assert batch.attribution == ("cause" if outcome == "passed" else "untested")


def test_one_change_in_time_is_no_accusation() -> None:
    found = verdict_of(idle(20) + idle(20, "b"))
    assert found["status"] == "inconclusive"
    assert "never back" in found["sentence"]


def test_sessions_that_each_repeat() -> None:
    before = [reply("a", session="baseline") for _ in range(12)]
    now = [reply("b", session="now") for _ in range(12)]
    found = verdict_of(before + now)
    assert (found["layer"], found["rule"]) == ("version", "version.drift")
    same = [reply("a", session="now") for _ in range(12)]
    assert verdict_of(before + same)["status"] == "clean"


def test_replies_of_a_response_cache_are_never_clean() -> None:
    kept = idle(20)
    cached = [
        Observation(
            o.id, o.query, o.request, output=o.output, factors=o.factors,
            response={**(o.response or {}), "id": "same", "created": 5},
        )
        for o in kept
    ]  # fmt: skip
    assert len(masked(cached).ids) == 19
    found = verdict_of(cached)
    assert found["status"] == "inconclusive"
    assert "response cache" in found["sentence"]
    assert found["ruled_out"] == ["input"] or found["ruled_out"] == []


def test_another_prompt_length_is_proof_of_another_input() -> None:
    first, second = idle(12), idle(12, "b")
    told = [
        Observation(
            o.id, o.query, o.request, output=o.output, factors=o.factors,
            response={**(o.response or {}), "usage": {"prompt_tokens": n}},
        )
        for n, group in ((9, first), (11, second))
        for o in group
    ]  # fmt: skip
    found = verdict_of(told)
    assert (found["layer"], found["rule"]) == ("input", "input.prompt-tokens-differ")
    assert found["confidence"] == "confirmed"


def test_unit_permutation_is_exact_on_a_small_design() -> None:
    """5 bursts that all differ against 5 idle blocks: 2 of C(10, 5) relabellings are as far."""
    samples = read_samples(
        [reply("a", unit=f"i{i}") for i in range(5)]
        + [o for i in range(5) for o in burst("b", f"b{i}")]
    )
    assert unit_permutation_p(samples, "burst") == pytest.approx(2 / math.comb(10, 5))


def test_trend_grows_with_the_dose() -> None:
    doses = [8.0] * 20 + [32.0] * 20
    up = [False] * 18 + [True] * 2 + [True] * 12 + [False] * 8
    small = trend_p(doses, up)
    assert small is not None and small < 0.01
    assert trend_p(doses, up[::-1]) > 0.95  # type: ignore[operator]
    assert trend_p(doses, [False] * 40) is None


def test_chao1_and_spread() -> None:
    texts = "aaaaaaaabbbbcdef"  # k = 6, f1 = 4, f2 = 0
    found = idle_summary(read_samples([reply(t) for t in texts]))
    assert found is not None
    assert (found.k, found.once) == (6, 4)
    assert found.chao1 == pytest.approx(6 + 4 * 3 / 2)
    assert found.spread == "finite"
    always_new = idle_summary(read_samples([reply(str(i)) for i in range(16)]))
    assert always_new is not None and always_new.spread == "continuous"


def positions(rng: np.random.Generator, n: int, step: float | None, scale: float) -> list[Position]:
    """Top-8 log-probabilities; logits on multiples of ``step`` (None: continuous)."""
    out = []
    for _ in range(n):
        logits = rng.normal(0, scale, 50)
        if step is not None:
            logits = np.round(logits / step) * step
        values = logits - np.log(np.exp(logits).sum())
        order = np.argsort(-values, kind="stable")[:8]
        top = tuple(Candidate(f"t{i}", None, float(np.float32(values[i]))) for i in order)
        out.append(Position(top[0].token, None, top[0].logprob, top))
    return out


@pytest.mark.parametrize(
    ("step", "dtype"), [(1 / 16, "bfloat16"), (1 / 128, "float16"), (None, "no lattice")]
)
def test_the_lattice_tells_the_output_type(step: float | None, dtype: str) -> None:
    found = positions(np.random.default_rng(5), 60, step, 3.0)
    told = fingerprint([Observation("o", output=Output(positions=tuple(found)))])
    assert told.dtype == dtype
    if step is not None:
        steps = [lattice_step([c.logprob for c in p.top]) for p in found]
        assert min(s for s in steps if s is not None) == step


def test_rounded_values_are_told_from_a_lattice() -> None:
    rounded = [
        Position("a", None, -0.1, tuple(Candidate(str(i), None, -0.1234 - i / 8) for i in range(5)))
    ]
    short = [
        Position(p.token, None, p.logprob, tuple(
            Candidate(c.token, None, round(c.logprob, 4)) for c in p.top
        ))
        for p in rounded
    ]  # fmt: skip
    told = fingerprint([Observation("o", output=Output(positions=tuple(short)))])
    assert told.dtype == "rounded"


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_the_effective_temperature_is_found(temperature: float) -> None:
    rng = np.random.default_rng(11)
    drawn = []
    for p in positions(rng, 800, None, 2.0):
        values = np.array([c.logprob for c in p.top])
        chances = np.exp(values / temperature)
        pick = p.top[int(rng.choice(len(values), p=chances / chances.sum()))]
        drawn.append(Position(pick.token, None, pick.logprob, p.top))
    told = effective_temperature(choices([Observation("o", output=Output(positions=tuple(drawn)))]))
    assert told.interval is not None
    assert told.interval[0] <= temperature * 1.02 and told.interval[1] >= temperature * 0.98
    assert told.estimate == pytest.approx(temperature, rel=0.2)


def test_greedy_choices_bound_the_temperature() -> None:
    found = positions(np.random.default_rng(2), 400, None, 2.0)
    told = effective_temperature(choices([Observation("o", output=Output(positions=tuple(found)))]))
    assert told.below == 0 and told.estimate is None
    assert told.upper is not None and told.upper < 0.1


def scored(chosen: str, values: dict[str, float], text: str | None = None) -> Observation:
    """A one-token reply with its alternatives."""
    top = tuple(Candidate(t, None, v) for t, v in sorted(values.items(), key=lambda x: -x[1]))
    found = reply(text or chosen)
    output = Output(text=text or chosen, positions=(Position(chosen, None, values[chosen], top),))
    return Observation(
        found.id, found.query, found.request, output=output, factors=found.factors,
        response=found.response,
    )  # fmt: skip


LOW = {"a": -0.1, "b": -2.5, "c": -4.0}
TIED = {"a": -0.9, "b": -0.9, "c": -2.0}


def test_a_draw_is_proven_by_equal_vectors_and_another_token() -> None:
    found = verdict_of([scored("a", LOW) for _ in range(9)] + [scored("b", LOW)])
    assert (found["layer"], found["rule"]) == ("config", "config.sampling-observed")
    assert found["confidence"] == "confirmed"


def test_an_exact_tie_is_not_called_a_draw() -> None:
    found = verdict_of([scored("a", TIED) for _ in range(6)] + [scored("b", TIED)] * 1)
    assert (found["layer"], found["rule"]) == ("decode", "decode.exact-tie")


def test_choices_below_the_best_that_repeat_are_a_penalty_not_a_draw() -> None:
    """A repetition penalty in the server's own defaults: always the same second-best token."""
    found = verdict_of([scored("b", LOW) for _ in range(12)])
    assert found["status"] == "clean", found["sentence"]
    assert "config" not in found["ruled_out"]


def test_an_odd_replica_met_only_inside_bursts_is_not_load() -> None:
    """One connection of the bursts leads to another replica and comes back in every burst."""
    bursts = []
    for i in range(8):
        for j in range(4):
            one = burst("b" if j == 3 else "a", f"b{i}")[0]
            factors = {**one.factors, "connection": f"x{j}" if j == 3 else f"c{j}"}
            bursts.append(
                Observation(
                    one.id, one.query, one.request, output=one.output, factors=factors,
                    response=one.response,
                )
            )  # fmt: skip
    asked = [reply("a", connection=f"c{i % 4}", unit=f"i{i // 4}") for i in range(40)]
    found = verdict_of(asked + bursts)
    assert found["layer"] != "batch", found["sentence"]
    assert found["status"] == "inconclusive"


def test_prompt_tokens_without_the_cached_ones_are_no_other_prompt() -> None:
    told = []
    for i, one in enumerate(idle(24)):
        cached = 0 if i == 0 else 8
        told.append(
            Observation(
                one.id, one.query, one.request, output=one.output,
                factors={**one.factors, "cached_tokens": cached},
                response={**(one.response or {}), "usage": {"prompt_tokens": 20 - cached}},
            )
        )  # fmt: skip
    found = verdict_of(told)
    assert found["layer"] is None, found["sentence"]


def test_servers_named_side_by_side_come_before_what_load_does_to_one() -> None:
    rows = [
        reply("ac"[number % 2], unit=f"i{number // 4}", replica=f"server {number % 2 + 1}")
        for number in range(60)
    ]
    rows += [
        replace(one, factors={**one.factors, "replica": "server 1"})
        for number in range(8)
        for one in burst("bbbb", f"b{number}")
    ]
    found = verdict_of(rows, replicas=2)
    assert (found["layer"], found["confidence"]) == ("version", "confirmed")
    assert [also["layer"] for also in found["also"]] == ["batch"]


def test_a_mere_suspicion_never_comes_first() -> None:
    from detdiag.evidence.finding import Finding
    from detdiag.verdict.causes import Cause
    from detdiag.verdict.endpoint.attribute import _in_order

    def cause(layer: Any, rule: str, sure: Any, *, proven: bool = False) -> Cause:
        finding = Finding(layer, rule, "failed", "x", "high", proven=proven)
        return Cause(layer, rule, sure, finding, "token", stands_alone=proven)

    doubt = cause("config", "config.unspecified-default", "suspected")
    load = cause("batch", "batch.load-sensitive", "confirmed", proven=True)
    apart = cause("version", "version.replica-changes-output", "confirmed", proven=True)
    assert _in_order([doubt, load]) == [load, doubt]
    assert _in_order([load, apart]) == [apart, load]
