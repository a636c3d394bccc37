"""Every format against a fixture of the same traffic; what is expected is written out here.

The traffic is described in fixtures/evidence/make_fixtures.py: six questions, six rounds, replica A
in even rounds and B in odd ones, other words from B for the first three questions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from detdiag.evidence.adapters import Adapted, read_evidence, read_files, untested_layers

FIXTURES = Path(__file__).parents[2] / "fixtures" / "evidence"

A = [
    "Room 12 has a bath and looks out on the garden.",
    "Dogs are welcome; we charge 15 euros a night.",
    "On Sundays breakfast runs from 8 to 11.",
    "Yes, the lift goes up to the fourth floor.",
    "The station is nine minutes away on foot.",
    "Yes, we keep your bags until 18:00 free of charge.",
]
B = [
    "Room 12: it has a bath and a view of the garden.",
    "Dogs are welcome, and the charge is 15 euros a night.",
    "Breakfast on Sundays is served from 8 to 11.",
    *A[3:],
]
IN_ORDER = A + B + A + B + A + B
NINE_O_CLOCK = 1747040400.0  # 2025-05-12T09:00:00Z


class Format(NamedTuple):
    """``ab`` are the two values of ``factor`` that mean replica A and B."""

    path: str
    title: str
    factor: str | None = "replica"
    ab: tuple[str, str] = ("", "")
    cached: bool = True
    overlap: bool = True
    time: bool = True
    logprobs: bool = False
    count: int = 36
    notes: tuple[str, ...] = ()


TWO_IPS = ("203.0.113.10", "203.0.113.11")
FINGERPRINTS = ("fp_a", "fp_b")
FORMATS = [
    Format(
        "har/session.har",
        "HAR 1.2",
        ab=TWO_IPS,
        notes=(
            "1 of 38 records left out: HTTP status 429",
            "1 of 38 records left out: answered by a response cache",
        ),
    ),
    Format(
        "vcr/cassette.yaml",
        "VCR cassette",
        ab=("Sweden Central", "West Europe"),
        overlap=False,
        notes=("1 of 37 records left out: HTTP status 500",),
    ),
    Format("curl/verbose.txt", "curl -v or --trace dump", ab=TWO_IPS, overlap=False),
    Format(
        "curl/trace_ascii.txt",
        "curl -v or --trace dump",
        ab=("pod-a", "pod-b"),
        overlap=False,
        count=12,
    ),
    Format("curl/trace.txt", "curl -v or --trace dump", None, overlap=False, count=6),
    Format(
        "otel/otlp_1_37.json",
        "OpenTelemetry GenAI spans",
        ab=("a.llm.example.test:443", "b.llm.example.test:443"),
        notes=("1 of 37 records left out: the span reports an error",),
    ),
    Format(
        "otel/spans_1_36.jsonl",
        "OpenTelemetry GenAI spans",
        "system_fingerprint",
        FINGERPRINTS,
        cached=False,
    ),
    Format("openinference/spans.jsonl", "OpenInference spans", None),
    Format("openllmetry/spans.jsonl", "OpenLLMetry spans", "system_fingerprint", FINGERPRINTS),
    Format(
        "litellm/payloads.jsonl",
        "LiteLLM StandardLoggingPayload",
        ab=("6f1c0e5d", "b27d9a44"),
        notes=(
            "1 of 38 records left out: answered by a response cache (cache_hit)",
            "1 of 38 records left out: the call failed",
        ),
    ),
    Format(
        "langfuse/observations.json",
        "Langfuse export",
        None,
        notes=("1 of 37 records left out: the generation is marked as an error",),
    ),
    Format(
        "langsmith/runs.jsonl",
        "LangSmith runs",
        "system_fingerprint",
        FINGERPRINTS,
        logprobs=True,
        notes=("1 of 37 records left out: the run reports an error",),
    ),
    Format(
        "helicone/export.jsonl",
        "Helicone export",
        "system_fingerprint",
        FINGERPRINTS,
        notes=(
            "1 of 38 records left out: answered by a response cache",
            "1 of 38 records left out: HTTP status 503",
        ),
    ),
    Format(
        "pairs/req_resp.json",
        "request/response pairs",
        "system_fingerprint",
        FINGERPRINTS,
        overlap=False,
    ),
    Format("pairs/input_output.jsonl", "request/response pairs", None, cached=False),
    Format("anthropic/pairs.jsonl", "request/response pairs", None, overlap=False),
    Format("gemini/pairs.jsonl", "request/response pairs", None, overlap=False, logprobs=True),
    Format("bedrock/pairs.jsonl", "request/response pairs", None, overlap=False),
    Format(
        "cohere/pairs.jsonl",
        "request/response pairs",
        None,
        cached=False,
        overlap=False,
        logprobs=True,
    ),
]


def read(path: str) -> Adapted:
    found = read_evidence(FIXTURES / path)
    assert found is not None
    return found


@pytest.mark.parametrize("case", FORMATS, ids=lambda case: case.path)
def test_every_format_gives_the_traffic(case: Format) -> None:
    found = read(case.path)
    assert found.format == case.title
    assert not found.broken
    observations = sorted(found.observations, key=lambda o: o.factors["time"])
    assert [o.output.text for o in observations] == IN_ORDER[: case.count]
    assert len({o.query for o in observations}) == 6
    assert all(len({o.query for o in observations[i::6]}) == 1 for i in range(6))
    assert len({o.id for o in observations}) == case.count
    assert set(case.notes) == {note for note in found.notes if "left out" in note}


@pytest.mark.parametrize("case", FORMATS, ids=lambda case: case.path)
def test_factors_are_those_of_the_traffic_and_no_others(case: Format) -> None:
    found = read(case.path)
    observations = sorted(found.observations, key=lambda o: o.factors["time"])
    for index, one in enumerate(observations):
        round_ = index // 6
        if case.factor is not None:
            assert one.factors[case.factor] == case.ab[round_ % 2]
        assert one.factors.get("cached_tokens") == ((64 if round_ else 0) if case.cached else None)
        # Ten seconds apart and two seconds long until round 5, whose six calls overlap.
        assert one.factors.get("concurrency") == (
            (6 if round_ == 5 else 1) if case.overlap else None
        )
        start = NINE_O_CLOCK + (10 * index if round_ < 5 else 300)
        assert start <= one.factors["time"] < start + 1
        assert one.routing is None and one.prompt_token_ids is None
        assert one.output.token_ids is None
        assert (one.output.positions is not None) == (
            case.logprobs and not (case.path.startswith("langsmith") and index % 6 > 3)
        )


@pytest.mark.parametrize("case", FORMATS, ids=lambda case: case.path)
def test_missing_channels_are_named(case: Format) -> None:
    lacks = read(case.path).lacks
    for channel in ("batch", "expert routing", "token ids", "prompt token ids"):
        assert channel in lacks
    assert ("log-probabilities" in lacks) == (not case.logprobs)
    assert ("concurrency" in lacks) == (not case.overlap)
    assert ("cached tokens" in lacks) == (not case.cached)
    assert "moe" in untested_layers(lacks)
    assert "prompt" not in lacks and "text" not in lacks


def test_har_observation_in_full() -> None:
    one = read("har/session.har").observations[5]
    assert one.id == "session.har:7"  # entry 1 is a GET
    assert one.surface == "openai.chat"
    assert one.output.finish_reason == "stop"  # put together from an event stream
    assert one.request is not None
    assert one.request["messages"][1]["content"] == "Do you keep luggage after check-out?"
    assert one.request["seed"] == 7
    assert one.factors == {
        "model_reported": "gpt-4o-mini-2024-07-18",
        "cached_tokens": 0,
        "replica": "203.0.113.10",
        "concurrency": 1,
        "time": NINE_O_CLOCK + 50,
    }


def test_names_that_move_together_become_one_factor() -> None:
    found = read("har/session.har")
    assert "system_fingerprint always moves together with replica: one factor" in found.notes
    assert all("system_fingerprint" not in one.factors for one in found.observations)
    assert "fingerprint" not in found.lacks


def test_batch_output_is_joined_with_the_input_beside_it() -> None:
    found = read("openai_batch/output.jsonl")
    by_id = {one.id: one for one in found.observations}
    assert len(by_id) == 34  # one expired, one was a bad request
    assert "task-004" not in by_id and "task-005" not in by_id
    for index in (0, 6, 17, 35):
        one = by_id[f"task-{index:03d}"]
        assert one.output.text == IN_ORDER[index]
        assert one.request is not None and one.request["user"] == f"guest-{index}"
        assert one.factors["system_fingerprint"] == ("fp_a", "fp_b")[index // 6 % 2]
    assert len({one.query for one in found.observations}) == 6
    assert "concurrency" in found.lacks and "replica" in found.lacks


def test_batch_input_alone_has_no_observations() -> None:
    found = read("openai_batch/input.jsonl")
    assert found.observations == () and found.notes == ("no reply in this file",)


def test_pairs_keep_logprobs_and_count_the_cut_line() -> None:
    found = read("pairs/pairs.jsonl")
    assert [line for line, _ in found.broken] == [10]
    assert len(found.observations) == 35
    positions = found.observations[2].output.positions
    assert positions is not None
    assert [p.token for p in positions][:3] == ["On", " Sundays", " breakfast"]
    assert positions[1].logprob == -0.125 - 1 / 64
    assert [(c.token, c.logprob) for c in positions[1].top] == [
        (" Sundays", -0.140625),
        (" the", -2.515625),
    ]


def test_gemini_and_cohere_positions_carry_ids() -> None:
    gemini = read("gemini/pairs.jsonl").observations[0]
    assert gemini.request is not None and gemini.request["model"] == "gemini-2.0-flash"
    assert gemini.output.positions is not None and gemini.output.positions[0].id == 1000
    assert gemini.output.positions[0].top[1].logprob == -3.5
    cohere = read("cohere/pairs.jsonl").observations[0]
    assert cohere.output.positions is not None and cohere.output.positions[1].id == 2001


COLLECTOR = FIXTURES / "otel_collector"


@pytest.mark.parametrize("logs", ["logs_1_37.json", "logs_1_36.json"])
def test_events_in_a_file_of_their_own_are_read_with_their_spans(logs: str) -> None:
    """The spans have times, parameters and servers, the events have the words."""
    paths = [COLLECTOR / logs, COLLECTOR / "traces.json"]
    found = read_files(paths)
    beside, adapted = found.values()
    assert beside is not None and beside.read_with == "traces.json" and not beside.observations
    assert adapted is not None and adapted.format == "OpenTelemetry GenAI spans"
    observations = sorted(adapted.observations, key=lambda o: o.factors["time"])
    assert [o.output.text for o in observations] == IN_ORDER
    assert all(o.request and o.request["messages"] for o in observations)
    servers = {o.factors["replica"] for o in observations[:6]}
    assert len(servers) == 1 and servers != {o.factors["replica"] for o in observations[6:12]}
    assert [o.factors["concurrency"] for o in observations[::6]] == [1] * 5 + [6]


def test_events_alone_are_calls_as_far_as_they_go() -> None:
    """Events of one moment each: no overlap. Those of 1.36 keep no parameters."""
    found = read("otel_collector/logs_1_37.json")
    assert found.format == "OpenTelemetry GenAI events"
    observations = sorted(found.observations, key=lambda o: o.factors["time"])
    assert [o.output.text for o in observations[:30]] == IN_ORDER[:30]
    assert "concurrency" in found.lacks and "temperature" not in found.lacks
    old = read("otel_collector/logs_1_36.json")
    assert sorted(o.output.text or "" for o in old.observations) == sorted(IN_ORDER)
    assert all("parameters" in o.unrecorded for o in old.observations)


@pytest.mark.parametrize("foreign", [36, 6])
def test_events_of_other_spans_stay_calls_of_their_own(foreign: int, tmp_path: Path) -> None:
    events = json.loads((COLLECTOR / "logs_1_37.json").read_text())
    for record in events["resourceLogs"][0]["scopeLogs"][0]["logRecords"][:foreign]:
        record["spanId"] = record["spanId"][::-1] + "00"
    (tmp_path / "logs.json").write_text(json.dumps(events))
    found = read_files([tmp_path / "logs.json", COLLECTOR / "traces.json"])
    counts = [0 if one is None else len(one.observations) for one in found.values()]
    assert counts == [foreign, 36 - foreign]


def test_events_outside_of_any_span_are_not_thrown_together(tmp_path: Path) -> None:
    events = json.loads((COLLECTOR / "logs_1_37.json").read_text())
    for record in events["resourceLogs"][0]["scopeLogs"][0]["logRecords"]:
        record["spanId"] = "0000000000000000"
    (tmp_path / "logs.json").write_text(json.dumps(events))
    found = read_evidence(tmp_path / "logs.json")
    assert found is not None
    assert sorted(o.output.text or "" for o in found.observations) == sorted(IN_ORDER)
    assert len({o.query for o in found.observations}) == 6


def test_spans_without_content_are_not_compared() -> None:
    found = read("otel/console.json")
    assert found.observations == ()
    assert found.notes[0] == "36 of 36 records left out: no answer recorded"
