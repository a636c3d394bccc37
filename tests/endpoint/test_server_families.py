"""Every family that the command names, with its quirks: what it can do is found, the request is
greedy there, a healthy one is not accused, and a sampling default is named or left open."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.endpoint.command import PROMPT, Done, detdiag_run
from tests.stub_server import Behaviour, families
from tests.stub_server.families import Family, FamilyServer

SMALL = ("--max-requests", "110", "--budget", "60s")
QUICK: dict[str, Any] = {"base_s": 0.001, "step_s": 0.0, "seed": 3}
CHAT, CHAT_LOGPROBS = "chat completions", "chat log-probabilities"
LEGACY = "/v1/completions"


@dataclass(frozen=True)
class Expected:
    """``tail`` is what a person types behind the address; ``states`` are capabilities."""

    make: Callable[[], Family]
    engine: str
    states: dict[str, str]
    tail: str = ""
    options: tuple[str, ...] = ()
    alternatives: int | None = None
    drawn: tuple[str | None, ...] = ("config",)
    """Layers that may be named where the server's default temperature draws."""
    fields: dict[str, Any] = field(default_factory=dict)


AZURE = "/openai/deployments/stub?api-version=2024-10-21"
FAMILIES: dict[str, Expected] = {
    "vllm": Expected(
        families.VLLM, "vllm", {CHAT_LOGPROBS: "yes", "/tokenize": "yes", "/metrics": "yes",
                                "continue_final_message": "yes"}, "/v1/", alternatives=20,
    ),
    "openai": Expected(
        families.OpenAI, "openai", {CHAT_LOGPROBS: "yes", LEGACY: "refused",
                                    "return_token_ids": "refused"}, alternatives=20,
    ),
    "azure": Expected(
        families.Azure, "azure", {CHAT_LOGPROBS: "yes", LEGACY: "refused", "/v1/models": "refused"},
        AZURE, ("--api-key-env", "STUB_KEY"), alternatives=20,
    ),
    "azure-full-url": Expected(
        families.Azure, "azure", {CHAT: "yes"},
        AZURE.replace("?", "/chat/completions?"), ("--api-key-env", "STUB_KEY"),
    ),
    "openrouter": Expected(
        families.OpenRouter, "openrouter", {CHAT_LOGPROBS: "yes", "/metrics": "refused"}, "/api/v1",
    ),
    "openrouter-drops": Expected(
        lambda: families.OpenRouter(drops=("logprobs", "top_logprobs"), comments=True),
        "openrouter", {CHAT_LOGPROBS: "absent"}, "/api",
    ),
    "litellm": Expected(
        families.LiteLLM, "litellm", {CHAT_LOGPROBS: "yes"}, "/v1/chat/completions",
    ),
    "ollama": Expected(
        families.Ollama, "ollama", {CHAT_LOGPROBS: "absent", "/tokenize": "refused",
                                    "/api/version": "yes"}, "/api/chat",
    ),
    "tgi": Expected(
        families.TGI, "tgi", {CHAT_LOGPROBS: "yes", "completions log-probabilities": "absent",
                              "/info": "yes", "/metrics": "yes", "/tokenize": "yes"},
        alternatives=5,
    ),
    "sglang": Expected(
        families.SGLang, "sglang", {CHAT_LOGPROBS: "yes", "/get_server_info": "yes",
                                    "/metrics": "yes"}, alternatives=20,
    ),
    "sglang-renamed": Expected(
        lambda: families.SGLang(renamed=True), "sglang", {"/server_info": "yes"}, "/v1",
    ),
    "llama.cpp": Expected(
        families.LlamaCpp, "llamacpp", {CHAT_LOGPROBS: "yes", "/props": "yes",
                                        "/metrics": "refused", "/tokenize": "yes"},
        alternatives=20, fields={"prefix_cache": True},
    ),
    "llama-cpp-python": Expected(
        families.LlamaCppPython, "llama-cpp-python", {CHAT: "yes", CHAT_LOGPROBS: "refused"},
    ),
    "llama-cpp-python-logits-all": Expected(
        lambda: families.LlamaCppPython(logits_all=True), "llama-cpp-python",
        {CHAT_LOGPROBS: "yes"}, alternatives=20,
    ),
    "transformers-serve": Expected(
        families.TransformersServe, "transformers", {CHAT_LOGPROBS: "absent", LEGACY: "refused",
                                                     "return_token_ids": "refused"},
    ),
    "transformers-serve-4": Expected(
        lambda: families.TransformersServe(strict=True), "transformers",
        {CHAT_LOGPROBS: "refused"},
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_KEY", families.Azure.key)


def run(server: FamilyServer, folder: Path, tail: str, *options: str) -> Done:
    done = detdiag_run([server.url + tail], folder, *SMALL, *options)
    assert done.report is not None, done.shown
    return done


def rows(done: Done) -> dict[str, dict[str, str]]:
    assert done.report is not None
    return {row["name"]: row for row in done.report["data"]["capabilities"]}


def generating(server: FamilyServer) -> list[dict[str, Any]]:
    return [body for path, body, _ in server.requests if "completions" in path]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_healthy_server_is_known_and_not_accused(name: str, tmp_path: Path) -> None:
    expected = FAMILIES[name]
    behaviour = Behaviour(default_temperature=1.0, **QUICK, **expected.fields)
    with FamilyServer(expected.make(), behaviour) as server:
        done = run(server, tmp_path, expected.tail, *expected.options)
    assert done.verdict["layer"] is None, done.verdict["sentence"]
    assert done.report is not None
    assert done.report["target"]["engine"] == expected.engine
    found = rows(done)
    assert {name: found[name]["state"] for name in expected.states} == expected.states, found
    assert all(body["temperature"] == 0 for body in generating(server))
    if expected.alternatives is not None:
        asked = [b["top_logprobs"] for b in generating(server) if b.get("max_tokens") == 32]
        assert asked and set(asked) == {expected.alternatives}


@pytest.mark.parametrize(
    "name", ["openai", "azure", "tgi", "ollama", "llama.cpp", "llama-cpp-python", "openrouter"]
)
def test_a_default_that_samples_is_config(name: str, tmp_path: Path) -> None:
    """A request that leaves the temperature to the server, each of which draws then."""
    expected = FAMILIES[name]
    own = tmp_path / "request.json"
    own.write_text(json.dumps({"messages": [{"role": "user", "content": PROMPT}]}))
    with FamilyServer(expected.make(), Behaviour(default_temperature=0.8, **QUICK)) as server:
        done = run(server, tmp_path, expected.tail, "--request", str(own), *expected.options)
    assert done.verdict["layer"] == "config", done.verdict["sentence"]
    assert done.verdict["rule"] == "config.unspecified-default"
    assert not any("temperature" in body for body in generating(server))


def test_a_router_that_drops_the_temperature_is_seen_to_sample(tmp_path: Path) -> None:
    family = families.OpenRouter(drops=("temperature",))
    with FamilyServer(family, Behaviour(**QUICK)) as server:
        verdict = run(server, tmp_path, "/api/v1").verdict
    assert verdict["rule"] == "config.sampling-observed", verdict["sentence"]


def test_a_router_that_drops_everything_convicts_nobody(tmp_path: Path) -> None:
    """Without log-probabilities, and with every knob dropped, nothing shows that it draws."""
    family = families.OpenRouter(drops=("temperature", "top_p", "seed", "logprobs", "top_logprobs"))
    with FamilyServer(family, Behaviour(**QUICK)) as server:
        done = run(server, tmp_path, "/api/v1")
    assert done.verdict["status"] == "inconclusive", done.verdict["sentence"]
    assert "a draw is possible too" in done.verdict["sentence"]
    assert "may not read it at all" in json.dumps(done.report)


def test_failures_inside_a_200_are_retried_and_recorded(tmp_path: Path) -> None:
    with FamilyServer(families.OpenRouter(fails_every=7), Behaviour(**QUICK)) as server:
        done = run(server, tmp_path, "/api/v1")
    assert done.verdict["layer"] is None, done.verdict["sentence"]
    assert "HTTP 200 with error 502" in json.dumps(done.report)


@pytest.mark.parametrize(
    ("make", "tail"), [(families.LiteLLM, ""), (families.OpenRouter, "/api/v1")]
)
def test_a_response_cache_of_a_gateway_is_masking(
    make: Callable[..., Family], tail: str, tmp_path: Path
) -> None:
    """LiteLLM's repeats id and time; OpenRouter's has new ones, and only a header tells."""
    with FamilyServer(make(cache=True), Behaviour(temperature=1.0, **QUICK)) as server:
        verdict = run(server, tmp_path, tail).verdict
    assert verdict["status"] == "inconclusive"
    assert "response cache" in verdict["sentence"]


def test_equal_short_ids_of_ollama_are_no_response_cache(tmp_path: Path) -> None:
    """Ids from 999 numbers and times in seconds meet now and then."""
    family = families.Ollama()
    family.random.randrange = lambda most: 417  # type: ignore[method-assign]
    with FamilyServer(family, Behaviour(**QUICK)) as server:
        done = run(server, tmp_path, "")
    assert done.verdict["layer"] is None, done.verdict["sentence"]
    assert "response cache" not in json.dumps(done.report["layers"] if done.report else "")


def test_a_reasoning_model_is_asked_as_it_wants_and_samples(tmp_path: Path) -> None:
    """No temperature 0, no log-probabilities, another name for the length, and no short answers:
    what is left can be asked, and it draws."""
    with FamilyServer(families.OpenAIReasoning(), Behaviour(**QUICK)) as server:
        done = run(server, tmp_path, "")
    found = rows(done)
    assert found["temperature 0"]["state"] == "refused"
    assert found[CHAT_LOGPROBS]["state"] == "refused"
    assert done.verdict["layer"] == "config", done.verdict["sentence"]
    assert done.verdict["rule"] == "config.best-effort-only"
    assert "send temperature 0" not in json.dumps(done.report)  # it was refused
    assert "'temperature' does not support 0" in json.dumps(done.report)
    measured = [b for b in generating(server) if b.get("max_completion_tokens") == 32]
    assert measured and not any("temperature" in b or "logprobs" in b for b in measured)


def test_a_request_of_ones_own_loses_no_field(tmp_path: Path) -> None:
    """What the user sends is diagnosed as it is: a refused temperature is the server's answer."""
    own = tmp_path / "request.json"
    body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "seed": 1}
    own.write_text(json.dumps(body))
    with FamilyServer(families.OpenAIReasoning(), Behaviour(**QUICK)) as server:
        done = detdiag_run([server.url], tmp_path, *SMALL, "--request", str(own))
    assert done.report is None
    assert "'temperature' does not support 0" in done.shown.splitlines()[-1]


def test_reasoning_that_leaves_no_room_to_answer_is_not_a_clean_bill(tmp_path: Path) -> None:
    """All 32 tokens go to hidden reasoning: every reply is empty, and equal."""
    family = families.OpenAIReasoning()
    family.hidden = 40
    with FamilyServer(family, Behaviour(**QUICK)) as server:
        verdict = run(server, tmp_path, "").verdict
    assert verdict["status"] == "inconclusive", verdict["sentence"]
    assert "--max-new-tokens" in verdict["sentence"]


def test_a_request_that_samples_is_no_cause_where_no_reply_came(tmp_path: Path) -> None:
    """Nobody saw a difference: what the file says stays advice."""
    own = tmp_path / "request.json"
    own.write_text(json.dumps({"messages": [{"role": "user", "content": PROMPT}]}))
    family = families.OpenAIReasoning()
    family.hidden = 40
    with FamilyServer(family, Behaviour(**QUICK)) as server:
        verdict = run(server, tmp_path, "", "--request", str(own)).verdict
    assert verdict["status"] == "inconclusive", verdict["sentence"]
    assert "send temperature 0" in [step["why"] for step in verdict["next"]]


def test_a_server_that_only_streams_can_be_read(tmp_path: Path) -> None:
    """Older ``transformers serve`` and some gateways stream whatever they are asked."""

    class Streaming(families.TransformersServe):
        def packed(self, data: bytes) -> bytes:
            whole = json.loads(data)
            [choice] = whole.pop("choices")
            chunks = [
                {**whole, "choices": [{"index": 0, "delta": {"content": word}}]}
                for word in choice["message"]["content"].split(" ")
            ]
            last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
            chunks.append({**whole, "choices": [last]})
            events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
            return ("".join(events) + "data: [DONE]\n\n").encode()

    with FamilyServer(Streaming(), Behaviour(**QUICK)) as server:
        done = run(server, tmp_path, "")
    assert done.verdict["layer"] is None, done.verdict["sentence"]
    assert done.report is not None and done.report["verdict"]["divergence"] == "none"


class Moved(families.VLLM):
    """A server behind a gateway that gives it another base."""

    def __init__(self, base: str) -> None:
        super().__init__()
        self.chat, self.completions = f"{base}/chat/completions", f"{base}/completions"


@pytest.mark.parametrize(
    ("base", "tail", "shown"),
    [
        ("/llm/v1", "/llm", "/llm/v1"),
        ("", "", ""),
        ("/v1", "/api/", "/v1"),
        ("/x/v1", "/x/v1/", "/x/v1"),
    ],
)
def test_other_bases_are_tried(base: str, tail: str, shown: str, tmp_path: Path) -> None:
    with FamilyServer(Moved(base), Behaviour(**QUICK)) as server:
        done = run(server, tmp_path, tail)
        assert done.report is not None
        assert done.report["target"]["name"] == server.url + shown
    assert done.verdict["layer"] is None, done.verdict["sentence"]


def test_a_base_that_nobody_serves_is_one_line_about_the_given_one(tmp_path: Path) -> None:
    with FamilyServer(Moved("/elsewhere/v1"), Behaviour(**QUICK)) as server:
        done = detdiag_run([server.url + "/llm"], tmp_path, *SMALL)
    assert done.report is None
    assert "HTTP 404: Not Found" in done.shown.splitlines()[-1]


def test_azure_needs_no_model_name_and_a_wrong_key_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--model-name", "", "--api-key-env", "STUB_KEY")
    with FamilyServer(families.Azure(), Behaviour(**QUICK)) as server:
        done = run(server, tmp_path, AZURE, *options)
        assert done.report is not None and done.report["target"]["model"] == "stub"
        monkeypatch.setenv("STUB_KEY", "another-key-0123456789")
        done = detdiag_run([server.url + AZURE], tmp_path, *SMALL, *options)
    assert done.report is None
    line = done.shown.splitlines()[-1]
    assert "HTTP 401: Access denied" in line and "--api-key-env" in line
    assert "another-key" not in done.shown


def test_user_and_password_of_the_url_reach_the_server_and_nothing_else(tmp_path: Path) -> None:
    with FamilyServer(families.VLLM(), Behaviour(**QUICK)) as server:
        url = server.url.replace("://", "://someone:hidden-word@")
        done = detdiag_run([url], tmp_path, *SMALL)
        assert all("authorization" in {k.lower() for k in h} for _, _, h in server.requests)
    assert done.report is not None, done.shown
    written = "".join(p.read_text("utf-8", "replace") for p in tmp_path.iterdir())
    for text in (written, done.shown):
        assert "hidden-word" not in text and "someone" not in text


@pytest.mark.parametrize("mixed", [False, True])
def test_providers_of_a_router_are_compared(mixed: bool, tmp_path: Path) -> None:
    """Two providers by chance: alike they are cleared, with other weights one is named."""

    class Routed(families.OpenRouter):
        completions = None

        def answer(self, answer: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
            name = "Beta" if body["second"] else "Alpha"
            return {**super().answer(answer, body), "provider": name}

        def prepare(self, body: dict[str, Any]) -> dict[str, Any]:
            second = chance.random() < 0.5
            kept = super().prepare(body)
            if second and mixed:  # the model is a function of the prompt: another word, as long
                [turn] = kept["messages"]
                kept["messages"] = [{**turn, "content": turn["content"].replace("w3", "w4")}]
            return {**kept, "second": second}

    chance = random.Random(4)
    with FamilyServer(Routed(), Behaviour(**QUICK)) as server:
        verdict = run(server, tmp_path, "/api/v1").verdict
    if mixed:
        assert verdict["rule"] == "version.provider-changes-output", verdict["sentence"]
    else:
        assert verdict["layer"] is None, verdict["sentence"]
