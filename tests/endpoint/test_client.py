"""The HTTP client: retries on the record, limits, secrets, connections; against a tiny server."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from detdiag.errors import DetdiagError
from detdiag.targets.endpoint import (
    Client,
    EndpointError,
    EndpointTarget,
    Limits,
    open_target,
    parse_address,
)
from detdiag.targets.endpoint import client as client_module
from detdiag.targets.endpoint.wire import decode_exact, vector_digests
from detdiag.targets.prompts import Prompt

KEY = "sk-very-secret-value"
PROMPT = Prompt("p1", "one two three")
ANSWER = {
    "id": "a",
    "created": 1,
    "model": "m",
    "choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


def answering(*replies: httpx.Response) -> tuple[httpx.MockTransport, list[httpx.Request]]:
    """A transport that gives ``replies`` in turn, the last one for ever."""
    seen: list[httpx.Request] = []
    turn = itertools.chain(replies, itertools.repeat(replies[-1]))

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        reply = next(turn)
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)

    return httpx.MockTransport(handle), seen


def client(transport: httpx.MockTransport, **options: Any) -> Client:
    options.setdefault("api_key", KEY)
    return Client(parse_address("http://host:1/v1"), transport=transport, **options)


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(work())  # type: ignore[arg-type]


@pytest.fixture
def no_wait(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Back-off without waiting; the waits asked for."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(client_module.asyncio, "sleep", sleep)
    return waits


def test_retries_are_on_the_record_of_the_observation(no_wait: list[float]) -> None:
    transport, seen = answering(
        httpx.Response(429, headers={"retry-after": "7"}),
        httpx.Response(503),
        httpx.Response(200, json=ANSWER),
    )
    target = EndpointTarget(client(transport), "m", {"temperature": 0})
    target.capabilities = type(target.capabilities)(chat=True)
    found = run(lambda: target.ask(PROMPT))
    told = (found.response or {})["context"]["retries"]
    assert [r["why"] for r in told] == ["HTTP 429", "HTTP 503"]
    assert no_wait == [7.0, 0.5]
    assert len(seen) == 3
    assert found.output.text == "yes"


def test_giving_up_says_how_often_it_was_tried(no_wait: list[float]) -> None:
    transport, seen = answering(httpx.Response(500, json={"error": {"message": "engine dead"}}))
    with pytest.raises(EndpointError) as caught:
        run(lambda: client(transport, retries=2).post_json("v1:/chat/completions", {}))
    assert len(seen) == 3
    assert caught.value.status == 500
    assert "engine dead" in caught.value.message
    assert [r.why for r in caught.value.retries] == ["HTTP 500", "HTTP 500"]


def test_refusals_are_not_retried() -> None:
    transport, seen = answering(httpx.Response(422, json={"detail": "no such field"}))
    with pytest.raises(EndpointError) as caught:
        run(lambda: client(transport).post_json("v1:/chat/completions", {}))
    assert len(seen) == 1
    assert caught.value.message == "HTTP 422: no such field"


def test_a_key_that_the_server_echoes_is_struck_out() -> None:
    words = f"Incorrect API key provided: {KEY}"
    transport, seen = answering(httpx.Response(401, json={"error": {"message": words}}))
    given = {"X-Tenant": "Basic tenant-secret"}
    with pytest.raises(EndpointError) as caught:
        run(lambda: client(transport, headers=given).post_json("v1:/models", {}))
    assert seen[0].headers["authorization"] == f"Bearer {KEY}"
    assert seen[0].headers["x-tenant"] == "Basic tenant-secret"
    assert KEY not in str(caught.value)
    assert client(transport, headers=given).scrub("a tenant-secret b") == "a *** b"


def test_all_attempts_count_against_the_limit(no_wait: list[float]) -> None:
    transport, seen = answering(httpx.Response(500))
    limits = Limits(max_requests=3)
    with pytest.raises(EndpointError) as caught:
        run(lambda: client(transport, retries=9, limits=limits).post_json("v1:/x", {}))
    assert caught.value.kind == "spent"
    assert len(seen) == limits.sent == 3


def test_the_rate_is_kept() -> None:
    transport, _ = answering(httpx.Response(200, json={}))
    limited = client(transport, limits=Limits(rps=50.0))

    async def work() -> float:
        start = time.monotonic()
        await asyncio.gather(*(limited.call("GET", "/x", connection=str(i)) for i in range(6)))
        return time.monotonic() - start

    assert run(work) >= 5 / 50.0 - 0.005


def test_the_key_comes_from_the_environment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DETDIAG_TEST_KEY", raising=False)
    with pytest.raises(DetdiagError, match="DETDIAG_TEST_KEY"):
        open_target("http://host", "m", api_key_env="DETDIAG_TEST_KEY")
    monkeypatch.setenv("DETDIAG_TEST_KEY", KEY)
    target = open_target("http://host", "m", api_key_env="DETDIAG_TEST_KEY")
    assert KEY not in repr(target.name)


@pytest.mark.parametrize(
    ("given", "chat", "metrics", "shown"),
    [
        ("http://h:8000", "http://h:8000/v1/chat/completions", "http://h:8000/metrics",
         "http://h:8000"),
        ("h:8000/v1/", "http://h:8000/v1/chat/completions", "http://h:8000/metrics",
         "http://h:8000/v1"),
        ("https://u:pw@h/api/v1/chat/completions", "https://u:pw@h/api/v1/chat/completions",
         "https://u:pw@h/api/metrics", "https://h/api/v1"),
        ("https://x.openai.azure.com/openai/deployments/d?api-version=2024-10-21",
         "https://x.openai.azure.com/openai/deployments/d/chat/completions?api-version=2024-10-21",
         "https://x.openai.azure.com/openai/deployments/d/metrics?api-version=2024-10-21",
         "https://x.openai.azure.com/openai/deployments/d"),
    ],
)  # fmt: skip
def test_addresses(given: str, chat: str, metrics: str, shown: str) -> None:
    address = parse_address(given)
    assert address.url("v1:/chat/completions") == chat
    assert address.url("/metrics") == metrics
    assert address.shown == shown


@pytest.mark.parametrize("given", ["", "ftp://h", "http://", "http://[::1", "http://h:99999"])
def test_what_is_no_address(given: str) -> None:
    with pytest.raises(DetdiagError):
        parse_address(given)


def test_digests_see_every_digit_that_was_sent() -> None:
    def body(value: str) -> bytes:
        entry = f'{{"token": "a", "logprob": {value}, "top_logprobs": []}}'
        return f'{{"choices": [{{"logprobs": {{"content": [{entry}]}}}}]}}'.encode()

    plain = vector_digests(decode_exact(body("-0.1")))
    assert plain == vector_digests(decode_exact(body("-0.1")))
    assert plain != vector_digests(decode_exact(body("-0.10000000000000000000001")))
    assert vector_digests(json.loads('{"choices": [{"message": {}}]}')) == (None, None)
