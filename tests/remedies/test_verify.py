"""Trials of remedies: each stops its planted fault, a placebo does not, and nothing is invented."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from detdiag.demo import FAULTS, demo_path
from detdiag.demo.faulty import partial_products, summed
from detdiag.demo.invariant import swapped
from detdiag.remedies.verify.child import run_child
from detdiag.remedies.verify.contrast import Contrast, kind_for, prompts_of
from detdiag.remedies.verify.measure import measure
from detdiag.remedies.verify.run import Plan, outcome_of, verify
from detdiag.remedies.verify.trials import TRIALS, trials_for
from detdiag.targets.local import LocalTarget, load_local, text_prompts
from detdiag.verdict.stats import fisher_greater

ROW = [3, 17, 25, 99, 14, 7, 201, 11]
OTHER = [44, 9, 8, 120, 33, 5, 6, 71]
MLP = "model.layers.1.mlp.down_proj"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def contrast(kind: str, **changes: Any) -> Contrast:
    prompts = [{"id": "a", "row": ROW, "start": 3}, {"id": "b", "row": OTHER, "start": 3}]
    given: dict[str, Any] = {"sizes": (2,), "repeats": 1, "reruns": 10, "new_tokens": 8}
    return Contrast(kind, tuple(prompts), **{**given, **changes})


def served(fault: str, work: Path, **load: Any) -> tuple[LocalTarget, Any]:
    case = FAULTS[fault].apply(work)
    args: dict[str, Any] = {
        "dtype": "bfloat16", "device": "cpu", "prompts": case.prompts[:2],
        "generate_kwargs": case.generate_kwargs,
    }  # fmt: skip
    target = load_local(case.model_dir, **{**args, **load})
    assert case.patch is not None
    return target, case


def tried(fault: str, kind: str, name: str | None, work: Path, **changes: Any) -> dict[str, Any]:
    """The measurement of one trial (None: as is) on a freshly loaded demo model with ``fault``."""
    work.mkdir()
    trial = TRIALS[name] if name else None
    target, case = served(fault, work, **(trial.load if trial else {}))
    requests = tuple(map(str, case.scratch.get("requests", ())))
    rows = [target.encode(p) for p in case.prompts[:2]]
    prompts = tuple(
        {"id": str(i), "row": list(row), "start": len(row) - 1 if kind == "generate" else 3}
        for i, row in enumerate(rows)
    )
    asked = contrast(kind, requests=requests, **{**ASKED.get(fault, {}), **changes})
    job = {
        "contrast": replace(asked, prompts=prompts).to_job(),
        "wraps": trial.wraps if trial else (),
        "policy": trial.policy if trial else "",
        "call": trial.call if trial else {},
        "modules": [MLP if fault == "batch-effect" else case.expected_module],
    }
    with case.patch(target.model):
        return measure(target, job)


ASKED: dict[str, dict[str, Any]] = {
    "batch-effect": {"sizes": (4,)},
    "router-tie": {"reruns": 24},
    "sampling": {"reruns": 20},
    "tie": {"reruns": 24, "new_tokens": 12},
}
MATRIX = {
    "batch-effect": (
        "size",
        ("row_invariant_modules", "constant_shape", "batch_1"),
        "deterministic",
    ),
    "padding": ("padding", ("batch_1",), "math_attention"),
    "neighbour-scale": ("neighbours", ("batch_1", "row_invariant_modules"), "deterministic"),
    "state": ("history", ("stateless",), "seeds"),
    "dropout": ("repeat", ("dropout_off", "seeds"), "deterministic"),
    "expert-capacity": ("company", ("capacity_off", "batch_1", "row_invariant"), "fp32_router"),
    "router-tie": ("repeat", ("pinned_routing",), "seeds"),
    "sampling": ("generate", ("greedy", "seeds"), "deterministic"),
    "bom": ("input", ("canonical_prompt",), "frozen_clock"),
    "template-clock": ("input", ("frozen_clock",), "canonical_prompt"),
}


@pytest.mark.parametrize("fault", MATRIX)
def test_remedies_stop_their_planted_fault_and_a_placebo_does_not(
    fault: str, tmp_path: Path
) -> None:
    kind, cures, placebo = MATRIX[fault]
    before = tried(fault, kind, None, tmp_path / "as-is")
    assert before["k"] > 0
    for name in (*cures, placebo):
        after = tried(fault, kind, name, tmp_path / name)
        outcome, _ = outcome_of(before, after, kind)
        assert (name, outcome) == (name, "no effect" if name == placebo else "helped")
        assert after["n"] == before["n"]


def test_float32_head_ends_the_draw_between_ties(tmp_path: Path) -> None:
    before = tried("tie", "generate", None, tmp_path / "a")
    after = tried("tie", "generate", "fp32_head", tmp_path / "b")
    assert before["k"] > 0 and after["k"] == 0


def test_nothing_helps_against_a_race_that_no_switch_controls(tmp_path: Path) -> None:
    before = tried("race", "repeat", None, tmp_path / "as-is")
    for trial in trials_for("operator.race", "repeat"):
        if trial.why_not(before["facts"]) is None:
            after = tried("race", "repeat", trial.name, tmp_path / trial.name)
            assert outcome_of(before, after, "repeat")[0] in ("no effect", "reduced"), trial.name


def test_the_healthy_model_gives_nothing_to_stop(tmp_path: Path) -> None:
    for kind in ("size", "padding", "neighbours", "repeat", "history", "generate"):
        found = tried("none", kind, None, tmp_path / kind)
        assert (found["k"], found["control_k"], found["flips"]) == (0, 0, 0) and found["n"] > 0
        assert found["tokens_per_s"] > 0 and not found["cut"]


# --- switches of the process, each with a module that obeys it as a kernel does


class Racy(nn.Linear):
    """Partial sums in an order that nobody controls, unless ``calm()`` says that the switch which
    a real kernel looks at is set."""

    calm: Callable[[], bool]

    def forward(self, x: Tensor) -> Tensor:
        parts = partial_products(self, x, 8)
        if not type(self).calm():
            order = torch.tensor(list(os.urandom(8))).argsort()
            parts = [parts[i] for i in order.tolist()]
        return summed(parts)


SWITCHES: dict[str, Callable[[], bool]] = {
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "one_thread": lambda: torch.get_num_threads() == 1,
    "cudnn_benchmark_off": lambda: not torch.backends.cudnn.benchmark,
    "full_precision": lambda: (
        not (
            torch.backends.cuda.matmul.allow_tf32
            or torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        )
    ),
    "math_attention": lambda: not torch.backends.cuda.flash_sdp_enabled(),
    "seeds": lambda: torch.initial_seed() == 0,
}


@contextlib.contextmanager
def unsettled() -> Iterator[None]:
    """A process in which every switch is off, for as long as the test lasts."""
    threads, benchmark = torch.get_num_threads(), torch.backends.cudnn.benchmark
    seed = torch.initial_seed()
    torch.set_num_threads(2)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cudnn.benchmark = benchmark
        torch.manual_seed(seed)


@pytest.mark.parametrize("name", SWITCHES)
def test_each_switch_reaches_the_operator_that_obeys_it(name: str) -> None:
    target = load_local(demo_path("dense"), dtype="bfloat16", device="cpu", prompts=())
    front = type("Racy", (Racy,), {"calm": staticmethod(SWITCHES[name])})
    with unsettled(), swapped({target.model.get_submodule(MLP): front}):
        found = []
        for trial in (None, TRIALS[name], TRIALS["dropout_off"]):
            torch.manual_seed(1)
            job = {
                "contrast": contrast("repeat").to_job(),
                "wraps": trial.wraps if trial else (),
                "policy": trial.policy if trial else "",
            }
            found.append(measure(target, job))
        before, after, placebo = found
        assert outcome_of(before, after, "repeat")[0] == "helped"
        assert outcome_of(before, placebo, "repeat")[0] == "no effect"


def test_dtype_and_attention_are_set_at_load(tmp_path: Path) -> None:
    target = load_local(demo_path("dense"), device="cpu", prompts=(), **TRIALS["fp32"].load)
    assert target.model.dtype == torch.float32
    target = load_local(
        demo_path("dense"), device="cpu", prompts=(), **TRIALS["eager_attention"].load
    )
    assert target.model.config._attn_implementation == "eager"


def test_global_state_is_as_before_after_all_trials(tmp_path: Path) -> None:
    from tests.remedies.test_white_box import flags

    target = load_local(
        demo_path("moe"), dtype="bfloat16", device="cpu", prompts=text_prompts(["a"])
    )
    torch.manual_seed(5)
    before = flags()[:14]
    state = {k: v.clone() for k, v in target.model.state_dict().items()}
    for trial in TRIALS.values():
        if trial.kinds is None or "repeat" in trial.kinds or "size" in trial.kinds:
            kind = "repeat" if trial.kinds is None or "repeat" in trial.kinds else "size"
            job = {
                "contrast": contrast(kind, reruns=2).to_job(), "wraps": trial.wraps,
                "policy": trial.policy, "modules": [MLP.replace("down_proj", "gate")],
            }  # fmt: skip
            measure(target, job)
    assert flags()[:14] == before
    assert all(torch.equal(v, state[k]) for k, v in target.model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in target.model.modules())
    assert not any("forward" in vars(m) for m in target.model.modules())


# --- planning and judging, with children that only pretend


def answer(k: int, n: int, **changes: Any) -> dict[str, Any]:
    facts = {"device": "cpu", "dtype": "bfloat16", "attention": "sdpa", "threads": 1}
    base = {
        "k": k, "n": n, "control_k": 0, "control_n": 4, "flips": 0, "positions": 40, "texts": 0,
        "texts_n": 0, "max_abs_logit": 0.5 if k else 0.0, "max_ulp": 4.0 if k else 0.0,
        "tokens_per_s": 100.0, "peak_memory_bytes": 10**9, "wall_s": 0.01, "cut": False,
        "facts": {**facts, "experts": False, "capacity": [], "jitter": []}, "reference": ["aa"],
    }  # fmt: skip
    return {**base, **changes}


def plan_of(rule: str = "batch.size-sensitive", kind: str = "size", **changes: Any) -> Plan:
    return Plan(rule, contrast(kind), {"path_or_id": "m"}, **changes)


def test_a_crash_is_its_own_outcome_and_the_others_go_on() -> None:
    def child(job: Any, **_: Any) -> dict[str, Any]:
        if job["policy"] == "batch_1":
            return {"error": "killed by signal 9", "wall_s": 0.1}
        if "row_invariant" in job["wraps"]:
            return answer(0, 8, tokens_per_s=40.0, peak_memory_bytes=10**9 + 5)
        return answer(8, 8)

    table = verify(plan_of(modules=("m.0",)), 60.0, child=child)
    rows = {row["remedy"]: row for row in table["trials"]}
    assert rows["batch_1"]["outcome"] == "error"
    assert rows["batch_1"]["after"]["error"] == "killed by signal 9"
    good = rows["row_invariant"]
    assert (good["outcome"], good["speed_ratio"], good["memory_delta_bytes"]) == ("helped", 0.4, 5)
    assert (good["before"]["k"], good["after"]["k"], good["same_answer"]) == (8, 0, True)
    assert rows["deterministic"]["outcome"] == "no effect"
    assert "'m.0'" in rows["row_invariant_modules"]["setting"]
    reasons = {row["remedy"]: row["reason"] for row in table["skipped"]}
    assert reasons == {
        "one_thread": "one thread is in use already",
        "cudnn_benchmark_off": "acts on CUDA only",
        "full_precision": "acts on CUDA only",
    }
    json.dumps(table)


def test_the_budget_ends_the_trials_not_the_table() -> None:
    def child(job: Any, **kwargs: Any) -> dict[str, Any]:
        assert kwargs["timeout_s"] <= 0.5
        time.sleep(0.1)
        return answer(8, 8, wall_s=0.1)

    table = verify(plan_of(), 0.5, child=child)
    assert 1 <= len(table["trials"]) <= 4
    late = [row for row in table["skipped"] if row["reason"] == "the budget was used up"]
    assert late and table["before"]["k"] == 8


def test_an_interrupt_leaves_what_was_measured() -> None:
    seen: list[int] = []

    def child(job: Any, **_: Any) -> dict[str, Any]:
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return answer(8, 8)

    table: dict[str, Any] = {}
    with pytest.raises(KeyboardInterrupt):
        verify(plan_of(), 60.0, child=child, table=table)
    assert len(table["trials"]) == 1 and table["before"]["n"] == 8


@pytest.mark.parametrize(
    ("before", "note"),
    [(answer(0, 8), "nothing that a remedy"), ({"error": "boom", "wall_s": 1.0}, "boom")],
)
def test_nothing_is_tried_where_there_is_nothing_to_stop(before: Any, note: str) -> None:
    table = verify(plan_of(), 60.0, child=lambda job, **_: before)
    assert note in table["note"] and not table["trials"]


def test_chance_asks_for_enough_reruns() -> None:
    jobs: list[Any] = []

    def child(job: Any, **_: Any) -> dict[str, Any]:
        jobs.append(job)
        return answer(3, 10, control_n=0) if len(jobs) == 1 else answer(0, 10, control_n=0)

    table = verify(plan_of("operator.race", "repeat"), 60.0, child=child)
    asked = jobs[1]["contrast"]["reruns"]
    assert jobs[0]["contrast"]["reruns"] == 10 < asked
    assert fisher_greater(3, 10, 0, asked) <= 0.01 < fisher_greater(3, 10, 0, asked - 1)
    assert {row["outcome"] for row in table["trials"]} == {"undecided"}


@pytest.mark.parametrize(
    ("before", "after", "kind", "outcome"),
    [
        (answer(8, 8), answer(0, 8), "size", "helped"),
        (answer(1, 8), answer(0, 8), "size", "helped"),
        (answer(8, 8), answer(0, 8, control_k=1), "size", "reduced"),
        (answer(8, 8), answer(0, 0), "size", "undecided"),
        (answer(8, 8), answer(2, 8), "size", "reduced"),
        (answer(8, 8), answer(7, 8), "size", "no effect"),
        (answer(8, 8, flips=3), answer(8, 8), "size", "reduced"),
        (answer(8, 8), answer(8, 8, max_abs_logit=0.01), "size", "reduced"),
        (answer(8, 8), answer(8, 8), "size", "no effect"),
        (answer(9, 10), answer(0, 10), "repeat", "helped"),
        (answer(1, 10), answer(0, 10), "repeat", "undecided"),
    ],
)
def test_outcomes(before: Any, after: Any, kind: str, outcome: str) -> None:
    assert outcome_of(before, after, kind)[0] == outcome


@pytest.mark.parametrize(
    ("rule", "factors", "kind"),
    [
        ("batch.token-count", (), "size"),
        ("batch.padding-positions", (), "padding"),
        ("batch.state-carried", (), "history"),
        ("batch.shared-scale", (), "neighbours"),
        ("moe.router-tie", ("repeat",), "repeat"),
        ("moe.router-tie", ("batch_size",), "company"),
        ("moe.capacity-drop", (), "company"),
        ("operator.race", (), "repeat"),
        ("decode.exact-tie", (), "generate"),
        ("config.sampling-still-on", (), "generate"),
        ("config.lost-on-the-wire", (), None),
        ("input.bytes-differ", (), "input"),
        ("version.weights-changed", (), None),
    ],
)
def test_contrast_of_a_rule(rule: str, factors: tuple[str, ...], kind: str | None) -> None:
    assert kind_for(rule, factors) == kind
    if kind is not None:
        assert trials_for(rule, kind)


def test_rows_come_from_the_record() -> None:
    from detdiag.evidence.observation import Observation, Output

    def seen(query: str, ids: tuple[int, ...], made: tuple[int, ...]) -> Observation:
        return Observation(
            id=query, query=query, prompt_token_ids=ids, output=Output(token_ids=made)
        )

    rows = prompts_of(
        [
            seen("p1:teacher-forced", (1, 2, 3, 4), (5, 6)),
            seen("p1", (1, 2, 3), (5, 6)),
            seen("p1-neighbour:teacher-forced", (1, 2), (5,)),
            seen("p2:teacher-forced", (7, 8), (9,)),
        ],
        "p2",
    )
    assert rows == [
        {"id": "p2", "row": [7, 8], "start": 1},
        {"id": "p1", "row": [1, 2, 3, 4], "start": 2},
    ]


# --- real children


def test_a_child_that_cannot_start_its_work_says_why(tmp_path: Path) -> None:
    job = {"threads": 1, "questions": [], "load": {"path_or_id": str(tmp_path / "none")}}
    found = run_child(job, timeout_s=60.0)
    assert "none" in found["error"] and "\n" not in found["error"] and found["wall_s"] > 0
    assert "no answer" in run_child(job, timeout_s=1.0)["error"]


def test_the_command_shows_before_and_after_in_every_format(tmp_path: Path) -> None:
    outputs = [tmp_path / f"r.{kind}" for kind in ("json", "html", "md", "txt", "ndjson")]
    done = subprocess.run(
        [
            sys.executable, "-m", "detdiag", "run", "--demo-fault", "dropout", "--only", "operator",
            "--repeats", "12", "--max-new-tokens", "8", "--verify-remedies", "--budget", "100s",
            *(part for path in outputs for part in ("-o", str(path))),
        ],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    report = json.loads(outputs[0].read_text())
    table = report["data"]["remedies"]
    rows = {row["remedy"]: row for row in table["trials"]}
    assert rows["dropout_off"]["outcome"] == "helped"
    assert rows["dropout_off"]["before"]["k"] > 0 == rows["dropout_off"]["after"]["k"]
    assert rows["dropout_off"]["after"]["tokens_per_s"] > 0
    assert rows["dropout_off"]["after"]["peak_memory_bytes"] > 10**7
    first = report["remedies"]["white_box"][0]
    assert first["trial"] in ("dropout_off", "seeds") and first["outcome"] == "helped"
    assert first["measured"]["after"]["k"] == 0
    if "deterministic" in rows:
        assert rows["deterministic"]["outcome"] == "no effect"
    for path in outputs[1:4]:
        text = path.read_text()
        assert "evaluation mode, dropout off" in text and "helped" in text, path
    assert any('"name":"remedies"' in line for line in outputs[4].read_text().splitlines())
    assert "Remedies tried" in done.stderr or "Remedies tried" in done.stdout


def test_recorded_evidence_cannot_be_run_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "detdiag", "run", "--case", str(tmp_path), "--verify-remedies"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "needs a model that can be run again" in done.stderr
