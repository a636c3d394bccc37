"""Version pairs, the effective parameter table, intent against wire, and deployments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from detdiag.audit import AuditResult, audit_files, audit_request


def audit(files: dict[str, Any], **options: Any) -> AuditResult:
    data = {k: (v if isinstance(v, str) else json.dumps(v)).encode() for k, v in files.items()}
    return audit_files(data, **options)


def pairs(result: AuditResult) -> set[tuple[str | None, str | None]]:
    return {(f.kind, f.subject) for f in result.findings}


PENALTY = {
    "request.json": {"model": "m", "messages": [], "temperature": 0},
    "generation_config.json": {
        "do_sample": True,
        "repetition_penalty": 1.05,
        "transformers_version": "4.49.0",
    },
    "server_args.txt": "vllm serve m --seed 0",
}
CHANGES: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("version_pairs.yaml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change["name"])
def test_the_answer_changes_at_the_boundary(change: dict[str, Any]) -> None:
    pair = tuple(change["finding"])
    seen = [
        pair in pairs(audit(change["files"], surface=change.get("surface"), engine_version=version))
        for version in (change["before"], change["after"])
    ]
    assert seen == [not change["with_later"], change["with_later"]]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change["name"])
def test_an_unknown_version_gives_both_with_the_boundary(change: dict[str, Any]) -> None:
    result = audit(change["files"], surface=change.get("surface"))
    found = [f for f in result.findings if [f.kind, f.subject] == change["finding"]]
    bounded = [f for f in found if "applies" in f.data]
    assert bounded and all("the version is not known" in f.summary for f in bounded)
    numbers = "".join(str(f.data["applies"]) for f in bounded)
    assert any(v.removesuffix(".0") in numbers for v in (change["before"], change["after"]))


def test_an_image_tag_is_a_version() -> None:
    for tag, expected in (("v0.8.5", False), ("v0.9.0", True)):
        line = {"server_args.txt": f"docker run vllm/vllm-openai:{tag} --model m"}
        assert (("unspecified_default", "--seed") in pairs(audit(line))) is expected


def rows(result: AuditResult) -> dict[str, tuple[Any, str]]:
    return {row["parameter"]: (row["value"], row["origin"]) for row in result.effective}


def test_the_table_tells_value_origin_and_what_lost() -> None:
    result = audit(
        {
            "request.json": {"model": "m", "messages": [], "temperature": 1e-8},
            "generation_config.json": {
                "temperature": 0.6,
                "top_p": 0.9,
                "transformers_version": "4.51.0",
            },
            "server_args.txt": "vllm serve m --override-generation-config '{\"top_p\": 0.5}'",
        },
        engine_version="0.10.0",
    )
    table = rows(result)
    assert table["temperature"] == (0.01, "request")
    assert table["top_p"] == (0.5, "--override-generation-config")
    assert table["repetition_penalty"] == (1.0, "vLLM default")
    assert table["decoding"][0] == "sampling"
    row = next(r for r in result.effective if r["parameter"] == "temperature")
    assert "generation_config.json: 0.6" in row["ignored"] and "raised to 0.01" in row["note"]


@pytest.mark.parametrize(
    ("surface", "body", "parameter", "value", "origin"),
    [
        (
            "ollama.openai_api",
            {"model": "m", "messages": []},
            "temperature",
            1.0,
            "injected by the OpenAI route",
        ),
        (
            "tgi.chat",
            {"model": "m", "messages": [], "temperature": 0},
            "do_sample",
            False,
            "engine",
        ),
        (
            "groq.chat",
            {"model": "m", "messages": [], "temperature": 0},
            "temperature",
            1e-8,
            "request",
        ),
        ("llamacpp.server", {"prompt": "x"}, "temperature", 0.8, "llama.cpp default"),
        (
            "sglang.openai_request",
            {"model": "m", "input": "x"},
            "temperature",
            0.7,
            "SGLang default",
        ),
        (
            "exllamav2.settings",
            {"temperature": 0},
            "repetition_penalty",
            1.025,
            "ExLlamaV2 default",
        ),
    ],
)
def test_defaults_and_rewrites(
    surface: str, body: Any, parameter: str, value: Any, origin: str
) -> None:
    table = rows(audit({"request.json": body}, surface=surface, engine_version="99"))
    assert table[parameter] == (value, origin)


@pytest.mark.parametrize(
    ("intent", "wire", "lost"),
    [
        ({"temperature": 0}, {"model": "gpt-4o", "messages": []}, {"temperature"}),
        (
            {"temperature": 0, "seed": 0},
            {"model": "gpt-4o", "messages": [], "temperature": 0},
            {"seed"},
        ),
        ({"top_k": 1}, {"model": "gpt-4o", "messages": [], "extra_body": {"top_k": 1}}, {"top_k"}),
        (
            {"temperature": 0},
            {"model": "gpt-4o", "messages": [], "temperature": 1},
            {"temperature"},
        ),
        (
            {"temperature": 0.0, "stop": "x"},
            {"model": "gpt-4o", "messages": [], "temperature": 0, "stop": ["x"]},
            set(),
        ),
        ({"max_tokens": 5}, {"model": "gpt-4o", "messages": [], "max_completion_tokens": 5}, set()),
        ({"seed": 3}, {"model": "mistral-large-latest", "messages": [], "random_seed": 3}, set()),
        ({"timeout": 5, "api_key": "x"}, {"model": "gpt-4o", "messages": []}, set()),
        ({"do_sample": False}, {"model": "glm-4-plus", "messages": [], "temperature": 0}, set()),
        (
            {"inferenceConfig": {"temperature": 0, "topP": 0.5}},
            {"messages": [], "inferenceConfig": {"topP": 0.5}},
            {"temperature"},
        ),
    ],
)
def test_intent_against_wire(intent: Any, wire: Any, lost: set[str]) -> None:
    found = audit({"intent.json": intent, "request.json": wire}).findings
    assert {
        f.subject
        for f in found
        if f.rule in ("config.lost-on-the-wire", "config.changed-on-the-wire")
    } == lost


def test_the_known_client_faults_are_named() -> None:
    wire = {"model": "gpt-4o", "messages": [], "extra_body": {"top_k": 1}}
    found = audit({"intent.json": {"top_k": 1, "temperature": 0}, "request.json": wire}).findings
    text = " ".join(f.summary for f in found)
    assert "falsy value was dropped" in text and "sits under extra_body.top_k" in text


def test_one_request_alone_accuses_only_sampling() -> None:
    greedy = audit_request({"model": "m", "messages": [], "temperature": 0, "user": "x"}, None)
    assert [f.outcome for f in greedy] == ["passed"]
    warm = audit_request({"model": "m", "messages": [], "temperature": 0.7}, None)
    assert [(f.outcome, f.subject) for f in warm] == [("failed", "temperature")]


def test_generation_config_of_transformers_does_not_judge_a_vllm_server() -> None:
    found = pairs(audit(PENALTY, engine_version="0.8.1"))
    assert ("sampling_still_on", "do_sample") not in found
    assert ("unspecified_default", "repetition_penalty") in found


def test_shared_names_stay_ambiguous_and_unique_ones_do_not() -> None:
    body = {"model": "my-model", "messages": [], "temperature": 0}
    assert audit({"request.json": body}).unplaced[0][1][:2] == ("openai.chat", "azure.openai_chat")
    assert audit({"request.json": {**body, "guided_json": {}}}).unplaced == []


def test_a_request_under_a_launch_surface_or_an_unknown_name_is_still_a_request() -> None:
    body = {"temperature": 1e-7}
    found = {(f.kind, f.subject) for f in audit_request(body, "vllm.engine")}
    assert ("sampling_still_on", "temperature") in found
    assert audit_request({"messages": [], "temperature": 0}, "in-house.gateway")
