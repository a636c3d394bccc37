"""Hosted APIs and gateways before them."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.stub_server.engine import digest
from tests.stub_server.families.base import (
    CHAT_FIELDS,
    Body,
    Family,
    FamilyServer,
    Refused,
    entries,
    openai_error,
)


class OpenAI(Family):
    """Fewer alternatives than asked for, -9999 (API reference, ``top_logprobs``: "possibly fewer"),
    unknown fields refused, no completions of chat models, rate-limit headers."""

    completions = None
    owner = "system"

    def get(self, path: str, server: FamilyServer) -> Any:
        if path == "/v1/models":
            return super().get(path, server)
        raise Refused(404, openai_error(f"Invalid URL (GET {path})"))

    def check(self, body: Body, path: str, headers: Mapping[str, str]) -> None:
        unknown = sorted(body.keys() - CHAT_FIELDS)
        if unknown:
            raise Refused(
                400, openai_error(f"Unrecognized request argument supplied: {unknown[0]}")
            )
        if int(body.get("top_logprobs") or 0) > 20:
            raise Refused(400, openai_error("Invalid value for 'top_logprobs': must be <= 20."))

    def answer(self, answer: Body, body: Body) -> Body:
        for entry in entries(answer):
            tops = entry["top_logprobs"]
            few = tops[: max(1, len(tops) - 3)]
            low = [{**t, "logprob": -9999.0} for t in tops[len(few) : len(few) + 1]]
            entry["top_logprobs"] = [*few, *low]
        for choice in answer["choices"]:
            choice["message"] |= {"refusal": None, "annotations": []}
        details = {"cached_tokens": 0, "audio_tokens": 0}
        answer["usage"] = {**answer["usage"], "prompt_tokens_details": details}
        return {
            **answer,
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "service_tier": "default",
            "system_fingerprint": "fp_44709d6fcb",
        }

    def headers(self) -> dict[str, str]:
        return {
            "openai-processing-ms": "12",
            "openai-version": "2020-10-01",
            "x-request-id": uuid.uuid4().hex,
            "x-ratelimit-limit-requests": "500",
            "x-ratelimit-remaining-requests": "499",
            "x-ratelimit-reset-requests": "120ms",
        }


class OpenAIReasoning(OpenAI):
    """o-series and gpt-5: messages as reported in confident-ai/deepeval#2184 (403 for logprobs),
    gabrii/Cursor-Azure-GPT-5#33 (temperature), and for lengths that leave no room to answer."""

    hidden = 8
    """Tokens of reasoning, which are paid for and not shown."""

    def check(self, body: Body, path: str, headers: Mapping[str, str]) -> None:
        super().check(body, path, headers)
        if "max_tokens" in body:
            raise Refused(
                400,
                openai_error(
                    "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
                    "'max_completion_tokens' instead.",
                    param="max_tokens",
                    code="unsupported_parameter",
                ),
            )
        if body.get("temperature", 1) != 1:
            raise Refused(
                400,
                openai_error(
                    f"Unsupported value: 'temperature' does not support {body['temperature']} with "
                    "this model. Only the default (1) value is supported.",
                    param="temperature",
                    code="unsupported_value",
                ),
            )
        if body.get("logprobs"):
            raise Refused(403, openai_error("You are not allowed to request logprobs from this "
                                            "model"))  # fmt: skip
        if int(body.get("max_completion_tokens") or 99) <= self.hidden // 2:
            raise Refused(
                400,
                openai_error(
                    "Could not finish the message because max_tokens or model output limit was "
                    "reached. Please try again with higher max_tokens."
                ),
            )

    def prepare(self, body: Body) -> Body:
        left = int(body.get("max_completion_tokens") or 64) - self.hidden
        return {**super().prepare(body), "max_completion_tokens": max(1, left), "hidden": left}

    def answer(self, answer: Body, body: Body) -> Body:
        answer = super().answer(answer, body)
        if body["hidden"] <= 0:
            answer["choices"][0] |= {"finish_reason": "length"}
            answer["choices"][0]["message"]["content"] = ""
        spent = {"reasoning_tokens": self.hidden}
        answer["usage"]["completion_tokens_details"] = spent
        return answer


class Azure(OpenAI):
    """Deployments in the path, ``api-version``, the key in ``api-key``, content filter fields
    (learn.microsoft.com, Azure OpenAI REST reference; 404 and 400 bodies as in
    vibrantlabsai/ragas#1277)."""

    chat = "/openai/deployments/stub/chat/completions"
    completions = "/openai/deployments/stub/completions"
    key = "azure-key-0123456789"
    missing = {"error": {"code": "404", "message": "Resource not found"}}

    def get(self, path: str, server: FamilyServer) -> Any:
        return None

    def check(self, body: Body, path: str, headers: Mapping[str, str]) -> None:
        if headers.get("api-key") != self.key:
            raise Refused(
                401,
                {"error": {"code": "401", "message": "Access denied due to invalid subscription "
                           "key or wrong API endpoint."}},
            )  # fmt: skip
        if "api-version" not in parse_qs(urlsplit(path).query):
            raise Refused(404, self.missing)
        if "/chat/" not in path:
            raise Refused(
                400,
                {"error": {"code": "OperationNotSupported", "message": "The completion operation "
                           "does not work with the specified model, gpt-4o. Please choose "
                           "different model and try again."}},
            )  # fmt: skip
        super().check(body, path, headers)

    def answer(self, answer: Body, body: Body) -> Body:
        answer = super().answer(answer, body)
        safe = {"hate": {"filtered": False, "severity": "safe"}}
        answer["choices"][0]["content_filter_results"] = safe
        filtered = [{"prompt_index": 0, "content_filter_results": safe}]
        return {**answer, "prompt_filter_results": filtered}

    def headers(self) -> dict[str, str]:
        return {
            "apim-request-id": uuid.uuid4().hex,
            "x-ms-region": "East US",
            "x-ratelimit-remaining-requests": "99",
        }


class OpenRouter(Family):
    """Provider in the reply, white space in front while it waits, unknown parameters dropped
    without a word, failures inside a 200 (openrouter.ai/docs/api/reference/errors-and-debugging);
    ``providers`` answer by chance, the second with other weights if ``mixed``."""

    chat, completions = "/api/v1/chat/completions", "/api/v1/completions"
    missing = "<!DOCTYPE html><html><head><title>Not Found</title></head></html>"

    def __init__(
        self,
        *,
        drops: tuple[str, ...] = (),
        fails_every: int = 0,
        comments: bool = False,
        provider: str = "Alpha",
        cache: bool = False,
    ) -> None:
        super().__init__()
        self.drops, self.fails_every, self.comments = set(drops), fails_every, comments
        self.provider = provider
        self.cache: dict[str, Body] | None = {} if cache else None
        self.hit = False
        self.calls = itertools.count(1)

    def get(self, path: str, server: FamilyServer) -> Any:
        if path == "/api/v1/models":
            return {"data": [{"id": "stub", "name": "Stub", "supported_parameters": []}]}
        return None

    def check(self, body: Body, path: str, headers: Mapping[str, str]) -> None:
        if self.fails_every and next(self.calls) % self.fails_every == 0:
            error = {"code": 502, "message": "Provider returned error", "metadata": {}}
            raise Refused(200, {"error": error, "user_id": "user_1"})

    def prepare(self, body: Body) -> Body:
        return {k: v for k, v in super().prepare(body).items() if k not in self.drops}

    def answer(self, answer: Body, body: Body) -> Body:
        if self.cache is not None:  # a hit has an id and a time of its own
            key = digest(json.dumps(body, sort_keys=True))
            self.hit = key in self.cache
            answer = {**answer, "choices": self.cache.setdefault(key, answer)["choices"]}
        for choice in answer["choices"]:
            choice["native_finish_reason"] = choice["finish_reason"]
        return {
            **answer,
            "id": f"gen-{uuid.uuid4().hex}",
            "provider": self.provider,
        }

    def headers(self) -> dict[str, str]:
        if self.cache is None:
            return {}
        return {"X-OpenRouter-Cache-Status": "HIT" if self.hit else "MISS"}

    def packed(self, data: bytes) -> bytes:
        front = b": OPENROUTER PROCESSING\n\n" if self.comments else b"\n         \n"
        return front * 2 + data


class LiteLLM(Family):
    """Headers as a proxy of version 1.108 sends them (see tests/servers/test_litellm.py)."""

    owner = "openai"

    def __init__(self, cache: bool = False) -> None:
        super().__init__()
        self.cache: dict[str, Body] | None = {} if cache else None
        self.hit: str | None = None

    def answer(self, answer: Body, body: Body) -> Body:
        self.hit = None
        if self.cache is not None:
            key = digest(json.dumps(body, sort_keys=True))
            self.hit = key if key in self.cache else None
            answer = self.cache.setdefault(key, answer)
        return {**answer, "system_fingerprint": None}

    def headers(self) -> dict[str, str]:
        hit = {"x-litellm-cache-key": self.hit} if self.hit else {}
        return {
            "x-litellm-call-id": str(uuid.uuid4()),
            "x-litellm-model-id": "bd74626e740ac9d0",
            "x-litellm-model-api-base": "http://10.0.0.7:8000/v1",
            "x-litellm-version": "1.108.7",
            **hit,
        }
