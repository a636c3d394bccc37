"""The HTTP client: retries on the record, limits, secrets, connections; against a tiny server."""

from __future__ import annotations

import asyncio
import base64
import gzip
import itertools
import json
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
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


def client(transport: httpx.AsyncBaseTransport, **options: Any) -> Client:
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


@pytest.mark.parametrize(
    ("given", "chat", "root"),
    [
        ("[::1]:8000", "http://[::1]:8000/v1/chat/completions", "http://[::1]:8000"),
        (" http://h:1//v1// ", "http://h:1/v1/chat/completions", "http://h:1"),
        ("h:11434/api/chat", "http://h:11434/v1/chat/completions", "http://h:11434"),
        ("http://h/generate", "http://h/v1/chat/completions", "http://h"),
        ("http://h/llm/v1/responses", "http://h/llm/v1/chat/completions", "http://h/llm"),
        ("http://h/v1#part", "http://h/v1/chat/completions", "http://h"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai/chat/completions",
         "https://h/v1beta/openai"),
    ],
)  # fmt: skip
def test_addresses_as_people_type_them(given: str, chat: str, root: str) -> None:
    address = parse_address(given)
    assert address.url("v1:/chat/completions") == chat
    assert address.root == root


def test_the_name_of_an_azure_deployment_is_in_its_url() -> None:
    url = "https://x.openai.azure.com/openai/deployments/gpt%2D4o/chat/completions?api-version=1"
    assert parse_address(url).deployment == "gpt-4o"
    assert parse_address("http://h/v1").deployment is None


@pytest.mark.parametrize(
    "given",
    [
        "",
        "ftp://h",
        "http://",
        "http://[::1",
        "http://h:99999",
        "::1",
        "http://a b:80",
        "http://h\x1b",
    ],
)
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


def encoded(body: bytes, encoding: str) -> httpx.AsyncBaseTransport:
    """A transport that streams ``body`` as it is, as a socket would."""

    class Streaming(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            async def pieces() -> AsyncIterator[bytes]:
                for start in range(0, len(body), 1000):
                    yield body[start : start + 1000]

            headers = {"content-encoding": encoding} if encoding else {}
            return httpx.Response(200, headers=headers, content=pieces())

    return Streaming()


@pytest.mark.parametrize("encoding", ["", "gzip", "deflate", "raw-deflate", "identity"])
def test_packed_replies_are_unpacked(encoding: str) -> None:
    plain = json.dumps({"text": "a" * 5000}).encode()
    raw = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = {
        "gzip": gzip.compress(plain, mtime=0),
        "deflate": zlib.compress(plain),
        "raw-deflate": raw.compress(plain) + raw.flush(),
    }.get(encoding, plain)
    transport = encoded(packed, encoding.removeprefix("raw-"))
    found = run(lambda: client(transport).post_json("v1:/x", {}))
    assert found[1] == {"text": "a" * 5000}


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_packed_bomb_stays_small(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred megabytes in a hundred kilobytes: read up to the limit and no further."""
    monkeypatch.setattr(client_module, "LARGEST_BODY", 2**20)
    zeros = bytes(100 * 2**20)
    bomb = gzip.compress(zeros, 9, mtime=0) if encoding == "gzip" else zlib.compress(zeros, 9)
    del zeros
    tracemalloc.start()
    with pytest.raises(EndpointError, match="larger than 1 MiB"):
        run(lambda: client(encoded(bomb, encoding), retries=0).post_json("v1:/x", {}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20


@pytest.mark.parametrize(
    ("body", "encoding", "words"),
    [
        (gzip.compress(b"x" * 4000, mtime=0)[:-9], "gzip", "damaged or cut"),
        (b"not packed at all", "gzip", "damaged or cut"),
        (b"anything", "br", "packed as 'br'"),
        (b"anything", "gzip, gzip", "not asked for"),
    ],
)
def test_replies_that_cannot_be_unpacked(body: bytes, encoding: str, words: str) -> None:
    with pytest.raises(EndpointError, match=words):
        run(lambda: client(encoded(body, encoding), retries=0).post_json("v1:/x", {}))


def test_a_server_that_asks_for_long_is_not_asked_again(no_wait: list[float]) -> None:
    limit = {"error": {"message": "Rate limit reached"}}
    transport, seen = answering(httpx.Response(429, headers={"retry-after": "3600"}, json=limit))
    with pytest.raises(EndpointError) as caught:
        run(lambda: client(transport).post_json("v1:/x", {}))
    assert len(seen) == 1 and no_wait == []
    assert caught.value.message == "HTTP 429: Rate limit reached (asks to wait 3600 s)"


def test_a_used_up_account_is_not_asked_again(no_wait: list[float]) -> None:
    spent = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    transport, seen = answering(httpx.Response(429, json=spent))
    with pytest.raises(EndpointError, match="exceeded your quota"):
        run(lambda: client(transport).post_json("v1:/x", {}))
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:10 GMT"}, 0.0),
        ({"retry-after": "-5"}, 0.25),
        ({"retry-after": "nan"}, 0.25),
        ({"retry-after": "soon"}, 0.25),
    ],
)
def test_how_long_a_server_asks_to_wait(
    headers: dict[str, str], wait_s: float, no_wait: list[float]
) -> None:
    transport, _ = answering(httpx.Response(429, headers=headers), httpx.Response(200, json={}))
    run(lambda: client(transport).post_json("v1:/x", {}))
    assert no_wait == [wait_s]


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": 429, "message": "slow"}},
        {"choices": [{"error": {"code": 429, "message": "slow"}, "message": {"content": "ye"}}]},
    ],
)
def test_an_error_inside_a_200_is_an_error(body: dict[str, Any], no_wait: list[float]) -> None:
    """Half an answer is none: it would differ from the whole one."""
    transport, seen = answering(httpx.Response(200, json=body), httpx.Response(200, json=ANSWER))
    reply, decoded = run(lambda: client(transport).post_json("v1:/x", {}))
    assert len(seen) == 2 and decoded == ANSWER
    assert [r.why for r in reply.retries] == ["HTTP 200 with error 429"]


def test_an_answer_about_errors_is_an_answer() -> None:
    told = {**ANSWER, "error": None, "choices": [{"message": {"content": '{"error": 1}'}}]}
    transport, seen = answering(httpx.Response(200, json=told))
    assert run(lambda: client(transport).post_json("v1:/x", {}))[1] == told
    assert len(seen) == 1


def test_where_a_redirect_leads_is_said_and_not_followed() -> None:
    to = "https://user:hidden-word@other:8443/v1/chat/completions?token=secret-token"
    transport, seen = answering(httpx.Response(308, headers={"location": to}))
    with pytest.raises(EndpointError) as caught:
        run(lambda: client(transport).post_json("v1:/x", {}))
    assert len(seen) == 1
    assert "moved to https://other:8443/v1/chat/completions" in str(caught.value)
    assert "hidden-word" not in str(caught.value) and "secret-token" not in str(caught.value)


def test_control_characters_of_an_error_reach_no_terminal() -> None:
    words = "\x1b]0;title\x07 \u202eevil"
    transport, _ = answering(httpx.Response(400, json={"error": {"message": words}}))
    with pytest.raises(EndpointError) as caught:
        run(lambda: client(transport).post_json("v1:/x", {}))
    assert caught.value.message.isprintable()


def test_an_html_error_page_is_told_by_its_title() -> None:
    page = "<!DOCTYPE html><html><head><title>502 Bad\n Gateway</title></head><body>x</body></html>"
    transport, _ = answering(httpx.Response(502, text=page))
    with pytest.raises(EndpointError) as caught:
        run(lambda: client(transport, retries=0).post_json("v1:/x", {}))
    assert caught.value.message == "HTTP 502: an HTML page: 502 Bad Gateway"


@pytest.mark.parametrize("value", ["caf\xe9", "two\nlines", "\u201cquoted\u201d"])
def test_values_that_no_header_can_hold_are_one_line_without_them(value: str) -> None:
    transport, _ = answering(httpx.Response(200, json={}))
    with pytest.raises(DetdiagError) as caught:
        client(transport, api_key=value)
    assert "--api-key-env" in str(caught.value) and value not in str(caught.value)
    with pytest.raises(DetdiagError, match="--header x-tenant"):
        client(transport, headers={"X-Tenant": value})


def test_user_information_is_struck_out_in_every_spelling() -> None:
    transport, seen = answering(httpx.Response(200, json={}))
    address = parse_address("http://someone:p%40ssword@host:1/v1")
    mine = Client(address, transport=transport)
    run(lambda: mine.post_json("v1:/x", {}))
    sent = seen[0].headers["authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent) == b"someone:p@ssword"
    for word in ("someone", "p%40ssword", "p@ssword", sent):
        assert mine.scrub(f"a {word} b") == "a *** b"


def test_comments_before_a_reply_are_no_part_of_it() -> None:
    text = ": OPENROUTER PROCESSING\n\n: OPENROUTER PROCESSING\n\n" + json.dumps(ANSWER)
    transport, _ = answering(httpx.Response(200, text=text))
    assert run(lambda: client(transport).post_json("v1:/x", {}))[1] == ANSWER


@pytest.mark.parametrize("oddity", ["[" * 900 + "]" * 900, "NaN", "-Infinity", '"\\ud800"'])
def test_what_strict_parsers_refuse_is_no_crash(oddity: str) -> None:
    text = f'{{"choices": [{{"message": {{"content": "a"}}}}], "x": {oddity}}}'
    transport, _ = answering(httpx.Response(200, text=text))
    target = EndpointTarget(client(transport), "m", {"temperature": 0})
    target.capabilities = type(target.capabilities)(chat=True)
    assert run(lambda: target.ask(PROMPT)).output.text == "a"


def test_numbers_without_end_are_a_clear_error() -> None:
    text = '{"choices": [], "x": ' + "9" * 5000 + "}"
    transport, _ = answering(httpx.Response(200, text=text))
    with pytest.raises(EndpointError, match="not JSON"):
        run(lambda: client(transport).post_json("v1:/x", {}))
