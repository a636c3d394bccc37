"""How far replies under load went, and from which context on they move."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from detdiag.evidence.case import Case
from detdiag.evidence.observation import Candidate, Observation, Output, Position
from detdiag.evidence.record import read_record
from detdiag.verdict import decide
from tests.endpoint.command import detdiag_run
from tests.stub_server import Behaviour, StubServer

PROMPT = 20


def reply(number: int, arm: str, unit: str, tokens: int, moved_at: int | None) -> Observation:
    """``tokens`` equal tokens; the alternatives at ``moved_at`` and later are one step off."""
    rows = tuple(
        Position(
            "a", None, math.log(0.7),
            (Candidate("a", None, math.log(0.7)), Candidate("b", None, math.log(0.2 + moved))),
        )
        for moved in (0.01 * (moved_at is not None and i >= moved_at) for i in range(tokens))
    )  # fmt: skip
    context: dict[str, Any] = {"arm": arm, "unit": unit}
    if arm == "burst":
        context |= {"witness": "metrics", "running": 8, "size": 8, "look": 1}
    return Observation(
        f"o{number}", "q", request={"messages": [], "temperature": 0},
        output=Output(text="a" * tokens, positions=rows, finish_reason="length"),
        factors={"concurrency": 8 if arm == "burst" else 1, "connection": "c0", "time": number},
        response={
            "context": context,
            "usage": {"prompt_tokens": PROMPT, "completion_tokens": tokens},
        },
    )  # fmt: skip


def report_of(moved_at: int | None, tokens: int = 12) -> dict[str, Any]:
    rows = [reply(i, "idle", f"i{i // 4}", tokens, None) for i in range(32)]
    rows += [reply(40 + i, "burst", f"b{i // 4}", tokens, moved_at) for i in range(32)]
    case = Case(
        tuple(rows), target={"kind": "endpoint"}, factor_layers={"connection": "version"},
        method={"command": "detdiag run --endpoint U --max-new-tokens 12"},
    )  # fmt: skip
    return decide(case).to_dict()


def test_the_onset_is_the_prompt_and_the_tokens_before_the_first_that_moved() -> None:
    verdict = report_of(moved_at=7)["verdict"]
    assert verdict["layer"] == "batch"
    assert f"contexts of {PROMPT + 7} tokens and more move" in verdict["sentence"]
    assert f"(from {PROMPT} tokens on) keep" in verdict["sentence"]


def test_decode_steps_that_move_are_told_from_the_pass_over_the_prompt() -> None:
    sentence = report_of(moved_at=1)["verdict"]["sentence"]
    assert "the first token keeps its bits, the ones after it (decode steps) move" in sentence


def test_no_onset_is_claimed_where_the_first_token_moves() -> None:
    verdict = report_of(moved_at=0)["verdict"]
    assert verdict["layer"] == "batch"
    assert "contexts of" not in verdict["sentence"]


def test_a_clean_verdict_says_how_far_it_reaches_and_how_to_go_further() -> None:
    report = report_of(moved_at=None)
    verdict = report["verdict"]
    assert verdict["status"] == "clean"
    batch = next(layer for layer in report["layers"] if layer["layer"] == "batch")
    assert f"contexts of up to {PROMPT + 12} tokens" in str(batch)
    assert [step["command"] for step in verdict["next"]] == [
        "detdiag run --endpoint U --max-new-tokens 96"
    ]


def test_load_that_acts_from_some_length_on_is_found_with_its_onset(tmp_path: Path) -> None:
    """Four tokens of this prompt never get there: only full answers and their ends do."""
    with StubServer(Behaviour(seed=1, load_share=0.5, load_from=48)) as server:
        done = detdiag_run([server.url], tmp_path, "--quiet")
    verdict = done.verdict
    assert (verdict["status"], verdict["layer"]) == ("attributed", "batch"), verdict["sentence"]
    assert "contexts of 48 tokens and more move" in verdict["sentence"]
    asked = read_record(tmp_path / "record.ndjson").observations
    ends = [o for o in asked if "@" in str(o.query) and o.role == "trial"]
    assert ends and all(len(o.output.positions or ()) <= 4 for o in ends)


def test_replies_in_bursts_are_no_identical_conditions() -> None:
    """Half of them move: with the batch pinned only idle pairs are left, and those agree."""
    rows = [reply(i, "idle", f"i{i // 4}", 12, None) for i in range(32)]
    rows += [reply(40 + i, "burst", f"b{i // 4}", 12, 5 if i % 2 else None) for i in range(32)]
    case = Case(tuple(rows), target={"kind": "endpoint"}, factor_layers={"connection": "version"})
    data = decide(case).to_dict()["data"]
    assert [(c["k"], c["n"]) for c in data["controls"]] == [(0, 32 * 31 // 2)]
    pinned = next(step for step in data["ladder"] if step["layer"] == "batch")
    assert (pinned["k"], pinned["n"]) == (0, 32 * 31 // 2)
    whole = data["ladder"][0]
    assert (whole["k"], whole["n"]) == (48 * 16, 64 * 63 // 2)
