"""Planted causes must be named, healthy and unclear cases must not."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from detdiag.evidence.case import ProbeStatus
from detdiag.evidence.observation import Observation, Output
from detdiag.verdict import decide
from tests.verdict.build import GREEDY, case, observe, tokens

PINNED = {"batch_size": 1, "concurrency": 1, "cached_tokens": 0, "process": "p1"}


def verdict(observations, **more):
    return decide(case(observations, **more)).to_dict()["verdict"]


def test_batch_size_alone_flips() -> None:
    found = verdict(observe({"batch_size": [1, 8]}, lambda f, r, q: f"answer {f['batch_size']}"))
    assert (found["layer"], found["rule"]) == ("batch", "batch.size-sensitive")
    assert found["confidence"] == "confirmed"
    assert "0 of 30 repeats" in found["sentence"]


def test_two_that_change_together_name_nobody() -> None:
    rows = [
        *observe({"gpu": ["A"], "engine_version": ["1"]}, lambda f, r, q: "x"),
        *observe({"gpu": ["B"], "engine_version": ["2"]}, lambda f, r, q: "y"),
    ]
    found = verdict(rows)
    assert found["status"] == "inconclusive"
    assert set(found["confounded"]) == {"gpu", "engine_version"}
    assert "gpu" in found["next"][0]["why"]


def test_one_separating_observation_settles_it() -> None:
    rows = observe(
        {"gpu": ["A", "B"], "engine_version": ["1", "2"]},
        lambda f, r, q: f["engine_version"],
    )
    found = verdict(rows)
    assert found["layer"] == "version"
    assert "engine_version" in found["sentence"]
    assert "gpu" not in found["sentence"]


@pytest.mark.parametrize(("n", "status"), [(9, "inconclusive"), (10, "clean")])
def test_clean_needs_ten(n: int, status: str) -> None:
    found = verdict(observe({}, lambda f, r, q: "same", repeats=n))
    assert found["status"] == status
    assert ("10 are needed" in found["sentence"]) == (n < 10)


def test_one_run_an_arm_is_too_few() -> None:
    found = verdict(observe({"batch_size": [1, 8]}, lambda f, r, q: str(f), repeats=1))
    assert found["status"] == "inconclusive"
    assert found["layer"] is None


def test_a_race_with_everything_pinned_is_operator() -> None:
    found = verdict(observe({}, lambda f, r, q: f"v{r % 3}", fixed=PINNED, repeats=9))
    assert (found["layer"], found["rule"]) == ("operator", "operator.not-repeatable")


def test_a_race_with_hidden_batch_is_not_accused() -> None:
    found = verdict(observe({}, lambda f, r, q: f"v{r % 3}", repeats=9))
    assert found["status"] == "inconclusive"
    assert "batch" in found["sentence"]


def test_large_jumps_are_not_rounding() -> None:
    def answer(f, r, q):
        return tokens(("a", {"a": -0.1 - 0.9 * (r % 2), "b": -2.0}))

    pinned = {"batch_size": 1, "concurrency": 1}
    assert verdict(observe({}, answer, fixed=pinned, repeats=10))["status"] == "inconclusive"


def test_sampling_is_config_and_hides_the_rest() -> None:
    rng = random.Random(3)
    request = {**GREEDY, "temperature": 0.7}
    rows = observe({"tp": [1, 2]}, lambda f, r, q: str(rng.randrange(5)), request=request)
    found = verdict(rows)
    assert found["layer"] == "config"
    assert not found["also"]


def test_sampling_with_greedy_control_arm_is_confirmed() -> None:
    rows = observe({}, lambda f, r, q: f"v{r % 4}", request={**GREEDY, "temperature": 0.7})
    rows += [
        Observation(f"g{i}", "q1", GREEDY, output=Output(text="v0"), factors={"repeat": i})
        for i in range(6)
    ]
    found = verdict(rows)
    assert (found["layer"], found["confidence"]) == ("config", "confirmed")


def test_interplay_names_the_earlier_layer() -> None:
    def answer(f, r, q):
        return "flip" if f["dtype"] == "bfloat16" and f["batch_size"] == 8 else "base"

    rows = observe({"dtype": ["bfloat16", "float32"], "batch_size": [1, 8]}, answer)
    report = decide(case(rows)).to_dict()
    assert report["verdict"]["layer"] == "batch"
    roles = {r["layer"]: r["attribution"] for r in report["layers"]}
    assert roles["operator"] == "contributor"


def test_interplay_with_a_mechanism_goes_deeper() -> None:
    def answer(f, r, q):
        return "dropped" if f["expert_capacity"] == 8 and f["batch_size"] == 16 else "base"

    rows = observe({"expert_capacity": [8, 64], "batch_size": [1, 16]}, answer)
    assert verdict(rows)["layer"] == "moe"


def test_two_independent_causes_are_both_named() -> None:
    rows = observe(
        {"prompt_digest": ["a", "b"], "batch_size": [1, 8]},
        lambda f, r, q: f"{f['prompt_digest']}{f['batch_size']}",
        request=None,
    )
    found = verdict(rows)
    assert found["layer"] == "input"
    assert [a["layer"] for a in found["also"]] == ["batch"]


def test_repeatability_switch_names_the_switch() -> None:
    def answer(f, r, q):
        return "same" if f["deterministic_algorithms"] else f"v{r % 3}"

    rows = observe({"deterministic_algorithms": [True, False]}, answer, repeats=12, fixed=PINNED)
    found = verdict(rows)
    assert found["layer"] == "operator"
    assert found["rule"] == "operator.deterministic-algorithms-changes-output"


def test_equal_vectors_and_another_token_is_decode() -> None:
    top = {"3": -0.7, "7": -0.7, "5": -2.0}
    found = verdict(observe({}, lambda f, r, q: tokens(("37"[r % 2], top)), fixed=PINNED))
    assert (found["layer"], found["rule"]) == ("decode", "decode.exact-tie")


def test_moved_vectors_are_not_decode() -> None:
    def answer(f, r, q):
        d = 0.01 * (r % 2)
        return tokens(("37"[r % 2], {"3": -0.7 - d, "7": -0.705 + d, "5": -2.0}))

    found = verdict(observe({}, answer, fixed=PINNED, repeats=10))
    assert found["layer"] == "operator"


def test_a_penalty_may_choose_below_the_argmax() -> None:
    request = {**GREEDY, "repetition_penalty": 1.3}
    rows = observe({}, lambda f, r, q: tokens(("b", {"a": -0.1, "b": -2.4})), request=request,
                   repeats=10)  # fmt: skip
    assert verdict(rows)["status"] == "clean"


def test_drift_in_time_is_version_and_only_suspected() -> None:
    rows = [
        Observation(
            f"o{i}", "q1", GREEDY, output=Output(text="old" if i < 8 else "new"),
            factors={**PINNED, "repeat": i, "time": f"2031-05-{i + 1:02d}T09:00:00Z"},
        )
        for i in range(16)
    ]  # fmt: skip
    found = verdict(rows)
    assert (found["layer"], found["confidence"]) == ("version", "suspected")


def test_alternation_in_time_is_no_drift() -> None:
    rows = [
        Observation(
            f"o{i}", "q1", GREEDY, output=Output(text=f"v{i % 2}"),
            factors={**PINNED, "repeat": i, "time": i},
        )
        for i in range(16)
    ]  # fmt: skip
    assert verdict(rows)["layer"] == "operator"


def test_restarts_inside_both_versions_do_not_confound() -> None:
    rows = [
        *observe({"process": ["b1", "b2"], "engine_version": ["1"]}, lambda f, r, q: "x"),
        *observe({"process": ["b3", "b4"], "engine_version": ["2"]}, lambda f, r, q: "y"),
    ]
    assert verdict(rows)["layer"] == "version"


def test_one_start_per_version_stays_confounded() -> None:
    rows = [
        *observe({"process": ["b1"], "engine_version": ["1"]}, lambda f, r, q: "x"),
        *observe({"process": ["b2"], "engine_version": ["2"]}, lambda f, r, q: "y"),
    ]
    assert verdict(rows)["status"] == "inconclusive"


def test_an_unknown_factor_is_reported_by_name_and_can_be_placed() -> None:
    rows = observe({"phase_of_moon": ["new", "full"]}, lambda f, r, q: f["phase_of_moon"])
    found = verdict(rows)
    assert found["status"] == "inconclusive"
    assert "phase_of_moon" in found["sentence"]
    placed = verdict(rows, factor_layers={"phase_of_moon": "version"})
    assert placed["layer"] == "version"


def test_inert_fields_never_make_requests_differ() -> None:
    rows = []
    for i in range(12):
        request = {**GREEDY, "user": f"u{i}", "metadata": {"trace": i}, "stream": bool(i % 2)}
        rows.append(Observation(f"o{i}", None, request, output=Output(text="same")))
    assert verdict(rows)["status"] == "clean"


def test_healthy_noise_is_seldom_accused() -> None:
    """A random outcome with nothing behind it, under factors of every layer: no contrast may be
    named at all in more than a few of 60 draws (Holm at 0.05)."""
    accused = 0
    for seed in range(60):
        rng = random.Random(seed)
        rows = observe(
            {"batch_size": [1, 8], "gpu": ["A", "B"]},
            lambda f, r, q, rng=rng: rng.choice(["x", "y"]),
            repeats=5,
        )
        accused += verdict(rows)["layer"] in ("batch", "version")
    assert accused <= 6


@pytest.mark.parametrize("state", ["error", "out_of_budget"])
def test_an_unfinished_batch_probe_is_never_clean(state: str) -> None:
    rows = observe({}, lambda f, r, q: "same", repeats=20)
    status = ProbeStatus("batch", state, "left untested: batch of 8")  # type: ignore[arg-type]
    method = {"command": "detdiag run", "budget_s": 60, "batch_sizes": [1, 8]}
    found = verdict(rows, probes=(status,), method=method)
    assert found["status"] == "inconclusive"
    assert "batch" in found["sentence"]
    done = verdict(rows, probes=(ProbeStatus("batch", "done"),))
    assert done["status"] == "clean"


def test_decide_stays_a_function_after_it_ran() -> None:
    """A submodule of the same name would take its place in the package."""
    import detdiag.verdict
    from detdiag.evidence.case import Case

    lone = Case(observations=(Observation(id="a", query="q"),))
    detdiag.verdict.decide(lone)
    detdiag.verdict.decide(lone)


def test_a_case_of_files_alone_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from detdiag.evidence.case import Case\n"
        "from detdiag.verdict import decide\n"
        "assert decide(Case()).verdict.status == 'inconclusive'\n"
        "print([m for m in ('pandas', 'scipy', 'torch') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_clocked_prompts_do_not_count_as_equal_bytes() -> None:
    rows = [
        Observation(
            f"o{s}{i}", "q", {**GREEDY, "messages": [{"role": "user", "content": f"at 09:0{s}"}]},
            output=Output(text=f"answer {s}"), factors={"repeat": i},
        )
        for s in range(3)
        for i in range(4)
    ]  # fmt: skip
    report = decide(case(rows)).to_dict()
    assert report["verdict"]["layer"] == "input"
    layer = next(r for r in report["layers"] if r["layer"] == "input")
    assert not [f for f in layer["findings"] if f["outcome"] == "passed"]


def test_observations_without_logprobs_are_not_compared_with_those_that_have_them() -> None:
    """Half of each arm carries log-probabilities; they move with the cache, the text never."""

    def answer(f, r, q):
        if r % 2:
            return Output(text="a")
        return tokens(("a", {"a": -0.25 - 0.125 * bool(f["cached_tokens"]), "b": -3.0}))

    rows = observe({"cached_tokens": [0, 256]}, answer, repeats=12,
                   fixed={"batch_size": 1, "process": "p1"})  # fmt: skip
    found = verdict(rows)
    assert (found["layer"], found["divergence"]) == ("batch", "bitwise")


def test_passive_logs_never_confirm_and_never_pin_the_server() -> None:
    rows = observe({}, lambda f, r, q: f"v{r % 3}", fixed={"concurrency": 1}, repeats=10)
    assert verdict(rows, method={"passive": True})["status"] == "inconclusive"
    by_replica = observe({"replica": ["a", "b"]}, lambda f, r, q: f["replica"])
    found = verdict(by_replica, method={"passive": True})
    assert (found["layer"], found["confidence"]) == ("version", "suspected")


def test_runs_that_never_repeat_are_not_said_to_differ_only_between_conditions() -> None:
    """Every condition's own control fails, so no pair of conditions is where answers differ."""
    draw = random.Random(3)
    rows = [
        *observe({"batch_size": [1], "padded_length": [8]}, lambda f, r, q: f"v{draw.random()}"),
        *observe({"batch_size": [3], "padded_length": [19]}, lambda f, r, q: f"v{draw.random()}"),
    ]
    found = verdict(rows)
    assert "only where" not in found["sentence"]
    assert found["confounded"] == []
    assert found["layer"] != "batch"
