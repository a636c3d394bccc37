"""The command around the walk: plan, interruption, resuming, requests of one's own, redaction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from detdiag.errors import Exit
from detdiag.evidence.observation import Observation
from detdiag.evidence.record import read_record
from detdiag.probes.endpoint.context import EndpointContext
from detdiag.probes.endpoint.plan import make_plan, rows
from detdiag.targets.prompts import default_prompts
from tests.endpoint.command import PROMPT, detdiag_run
from tests.stub_server import Behaviour, StubServer

SMALL = ("--max-requests", "110", "--budget", "60s")
QUICK: dict[str, Any] = {"base_s": 0.001, "step_s": 0.0}


def test_a_dry_run_sends_nothing_and_counts(tmp_path: Path) -> None:
    with StubServer(Behaviour(**QUICK)) as server:
        done = detdiag_run([server.url], tmp_path, "--dry-run", "--max-requests", "300")
        assert server.requests == []
    assert done.code == Exit.CLEAN
    lines = [line for line in done.shown.splitlines() if "at most" in line]
    assert int(lines[0].split()[2]) <= 300
    assert not (tmp_path / "record.ndjson").exists()


@pytest.mark.parametrize("limit", [60, 150, 600, 5000])
@pytest.mark.parametrize("servers", [1, 3])
def test_the_plan_stays_below_its_limit(limit: int, servers: int) -> None:
    prompts = default_prompts()
    plan = make_plan(
        prompts=3, servers=servers, repeats=20, max_requests=limit, budget_s=60.0,
        max_new_tokens=32, seed=0,
    )  # fmt: skip
    table = rows(plan, prompts, servers)
    assert sum(row.requests for row in table) <= limit
    assert plan.idle >= 10


def test_the_limit_holds_on_the_wire(tmp_path: Path) -> None:
    with StubServer(Behaviour(**QUICK)) as server:
        detdiag_run([server.url], tmp_path, "--max-requests", "90", "--budget", "60s")
        sent = [path for path, body, _ in server.requests if body is not None]
    assert 60 <= len(sent) <= 90


def test_an_interrupted_walk_is_kept_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep, seen = EndpointContext.keep, []

    def stop(self: EndpointContext, observation: Observation) -> None:
        keep(self, observation)
        seen.append(observation)
        if len(seen) == 45:
            raise KeyboardInterrupt

    record = tmp_path / "record.ndjson"
    with StubServer(Behaviour(**QUICK)) as server:
        monkeypatch.setattr(EndpointContext, "keep", stop)
        done = detdiag_run([server.url], tmp_path, "--max-requests", "250")
        assert done.code == Exit.INTERRUPTED
        before = read_record(record)
        assert len(before.observations) == 45
        monkeypatch.setattr(EndpointContext, "keep", keep)
        options = ("--max-requests", "250", "--resume", str(record))
        done = detdiag_run([server.url], tmp_path, *options)
    assert done.code == Exit.CLEAN, done.shown
    after = read_record(record)
    ids = [o.id for o in after.observations]
    assert len(ids) == len(set(ids)) > 45
    assert {o.id for o in before.observations if o.id.startswith("idle")} <= set(ids)
    assert done.report is not None
    names = [row["phase"] for row in done.report["data"]["phases"]]
    assert names.count("idle") == 1 and names[-1] == "numerics"


def test_resuming_another_model_is_refused(tmp_path: Path) -> None:
    record = tmp_path / "record.ndjson"
    with StubServer(Behaviour(**QUICK)) as server:
        detdiag_run([server.url], tmp_path, "--max-requests", "60")
        options = ("--resume", str(record), "--model-name", "another")
        done = detdiag_run([server.url], tmp_path, *options)
    assert done.code == Exit.USAGE
    assert "cannot resume" in done.shown


def request_file(folder: Path, **fields: Any) -> str:
    body = {"model": "stub", "messages": [{"role": "user", "content": PROMPT}], **fields}
    path = folder / "request.json"
    path.write_text(json.dumps(body))
    return str(path)


def test_a_request_without_temperature_on_a_sampling_server_is_config(tmp_path: Path) -> None:
    with StubServer(Behaviour(default_temperature=1.0, **QUICK)) as server:
        own = request_file(tmp_path, max_tokens=24, user="somebody", top_p=0.9)
        done = detdiag_run([server.url], tmp_path, *SMALL, "--request", own)
        sent = [b for p, b, _ in server.requests if "chat" in p and b.get("max_tokens") == 24]
    assert done.verdict["layer"] == "config", done.verdict["sentence"]
    assert done.verdict["rule"] == "config.unspecified-default"
    assert sent and all(b["top_p"] == 0.9 and "temperature" not in b for b in sent)


def test_a_request_that_says_greedy_repeats_on_the_same_server(tmp_path: Path) -> None:
    with StubServer(Behaviour(default_temperature=1.0, **QUICK)) as server:
        own = request_file(tmp_path, max_tokens=24, temperature=0)
        done = detdiag_run([server.url], tmp_path, *SMALL, "--request", own)
    assert done.verdict["status"] == "clean", done.verdict["sentence"]


def test_redaction_covers_report_and_what_is_shown(tmp_path: Path) -> None:
    with StubServer(Behaviour(ties="random", tie_share=0.3, **QUICK)) as server:
        page = tmp_path / "page.html"
        options = (*SMALL, "--redact", "prompts", "-o", str(page), "--plotly", "none")
        done = detdiag_run([server.url], tmp_path, *options)
    assert done.report is not None
    for text in (json.dumps(done.report), page.read_text(), done.shown):
        assert PROMPT[:24] not in text


def test_capabilities_and_phases_are_in_the_report(tmp_path: Path) -> None:
    with StubServer(Behaviour(logprobs="rejected", metrics=False, **QUICK)) as server:
        page = tmp_path / "page.html"
        done = detdiag_run([server.url], tmp_path, *SMALL, "-o", str(page), "--plotly", "none")
    assert done.report is not None
    assert done.report["target"]["kind"] == "endpoint"
    states = {row["name"]: row["state"] for row in done.report["data"]["capabilities"]}
    assert states["chat log-probabilities"] == "refused"
    assert states["/metrics"] == "refused"
    assert {"moe", "decode"} <= set(done.verdict["untested"])
    assert "chat log-probabilities" in page.read_text()


def test_silently_ignored_log_probabilities_are_absent_not_refused(tmp_path: Path) -> None:
    with StubServer(Behaviour(logprobs="ignored", **QUICK)) as server:
        done = detdiag_run([server.url], tmp_path, *SMALL)
    assert done.report is not None
    states = {row["name"]: row["state"] for row in done.report["data"]["capabilities"]}
    assert states["chat log-probabilities"] == "absent"


def test_a_lower_cap_on_alternatives_is_found(tmp_path: Path) -> None:
    with StubServer(Behaviour(max_logprobs=5, **QUICK)) as server:
        done = detdiag_run([server.url], tmp_path, *SMALL)
        asked = {
            b.get("top_logprobs") for p, b, _ in server.requests if p.endswith("chat/completions")
        }
    assert done.report is not None
    notes = {row["name"]: row["note"] for row in done.report["data"]["capabilities"]}
    assert "20 alternatives" in notes["chat log-probabilities"]  # what was refused, and why
    assert {20, 8, 5} <= asked and 1 not in asked


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--baseline", "{record}"), "earlier run --endpoint"),
        (("--header", "no-value"), "expected NAME=VALUE"),
        (("--api-key-env", "DETDIAG_NO_SUCH_KEY"), "not set"),
        (("--request", "{missing}"), "cannot read"),
    ],
)
def test_bad_options_are_one_clear_line(
    tmp_path: Path, options: tuple[str, str], words: str
) -> None:
    record = tmp_path / "other.ndjson"
    record.write_text('{"type":"header","schema":"detdiag.record/1","target":{"kind":"local"}}\n')
    named = {"record": str(record), "missing": str(tmp_path / "none.json")}
    given = tuple(option.format(**named) for option in options)
    done = detdiag_run(["http://127.0.0.1:9"], tmp_path, *given)
    assert done.code == Exit.USAGE
    assert words in done.shown
