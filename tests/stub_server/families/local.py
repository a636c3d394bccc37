"""Engines that people run themselves."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from typing import Any

from tests.stub_server.engine import Engine
from tests.stub_server.families.base import (
    CHAT_FIELDS,
    VLLM_FIELDS,
    Body,
    Family,
    FamilyServer,
    Refused,
    entries,
)


class VLLM(Family):
    """Raw values, k+1 entries and -9999 for what was masked (vllm/entrypoints/openai: the chosen
    token is put in front of its alternatives, ``max(logprob, -9999.0)``)."""

    extras = VLLM_FIELDS

    def get(self, path: str, server: FamilyServer) -> Any:
        if path == "/version":
            return {"version": "0.11.0"}
        if path == "/metrics":
            name = f'{{engine="0",model_name="{server.model}"}}'
            return (
                f"vllm:num_requests_running{name} {float(server.engine.running)}\n"
                f"vllm:request_success_total{name} {float(self.answered)}\n"
            )
        return super().get(path, server)

    def tokenize(self, body: Body, engine: Engine) -> Any:
        ids = list(engine.prompt_of(body))
        return {"count": len(ids), "max_model_len": 1024, "tokens": ids}

    def answer(self, answer: Body, body: Body) -> Body:
        for entry in entries(answer):
            masked = {"token": "<pad>", "logprob": -9999.0, "bytes": [60]}
            entry["top_logprobs"] = [*entry["top_logprobs"], masked]
        return {**answer, "system_fingerprint": "vllm-0.11.0-tp1-1a2b3c4d"}


class Ollama(Family):
    """A constant fingerprint, ids from 999 numbers (openai middleware: ``rand.Intn(999)``), one
    request at a time (OLLAMA_NUM_PARALLEL 1), temperature 1.0 where none is given."""

    owner = "library"
    missing = "404 page not found"

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(5)

    def get(self, path: str, server: FamilyServer) -> Any:
        if path == "/api/version":
            return {"version": "0.12.6"}
        return "Ollama is running" if path == "/" else super().get(path, server)

    def prepare(self, body: Body) -> Body:
        kept = super().prepare(body)
        return {k: v for k, v in kept.items() if k not in ("logprobs", "top_logprobs")}

    def answer(self, answer: Body, body: Body) -> Body:
        number = self.random.randrange(999)
        return {**answer, "id": f"chatcmpl-{number}", "system_fingerprint": "fp_ollama"}


class TGI(Family):
    """Five alternatives at most, greedy only at exactly 0 (router/src/lib.rs), gauges that exist
    from the first request on, ``id`` empty, chat log-probabilities without bytes."""

    owner = "HuggingFaceTB/vllm-sglang-test"

    def get(self, path: str, server: FamilyServer) -> Any:
        if path == "/info":
            return {
                "model_id": self.owner,
                "model_sha": "7e27bd9f95328f0f3b08261d1252705110c806f8",
                "max_concurrent_requests": 128,
                "max_total_tokens": 2048,
                "router": "text-generation-router",
                "version": "3.3.4",
                "sha": "9f38d9305168f4b47c8c46b573f5b2c07881281d",
                "docker_label": None,
            }
        if path == "/metrics":
            gauge = f"tgi_batch_current_size {server.engine.running}\n" if self.answered else ""
            return f"# TYPE tgi_queue_size gauge\ntgi_queue_size 0\n{gauge}"
        return super().get(path, server)

    def tokenize(self, body: Body, engine: Engine) -> Any:
        if "inputs" not in body:
            raise Refused(422, "Failed to deserialize the JSON body: missing field `inputs`")
        ids = engine.prompt_of({"prompt": body["inputs"]})
        return [{"id": i, "text": "x", "start": 0, "stop": 1} for i in ids]

    def check(self, body: Body, path: str, headers: Mapping[str, str]) -> None:
        if int(body.get("top_logprobs") or 0) > 5:
            message = "Input validation error: `top_n_tokens` must be >= 0 and <= 5. Given: "
            raise Refused(
                422,
                {"error": f"{message}{body['top_logprobs']}", "error_type": "validation"},
            )

    def prepare(self, body: Body) -> Body:
        kept = super().prepare(body)
        return {k: v for k, v in kept.items() if k != "logprobs" or "prompt" not in body}

    def answer(self, answer: Body, body: Body) -> Body:
        for entry in entries(answer):
            entry.pop("bytes", None)
            entry["top_logprobs"] = [
                {k: v for k, v in t.items() if k != "bytes"} for t in entry["top_logprobs"]
            ]
        return {**answer, "id": "", "system_fingerprint": "3.3.4-sha-9f38d93"}


class SGLang(Family):
    """No fingerprint, ``extra_key`` as cache salt, gauges only with --enable-metrics and from the
    first request on (srt/entrypoints/http_server.py); ``renamed``: the routes without ``get_``."""

    owner = "sglang"
    extras = frozenset({"continue_final_message", "cache_salt"})

    def __init__(self, *, renamed: bool = False) -> None:
        super().__init__()
        self.renamed = renamed

    def get(self, path: str, server: FamilyServer) -> Any:
        info = {"model_path": "stub", "tp_size": 1, "version": "0.5.6", "random_seed": 1}
        routes = {"/server_info": info, "/model_info": {"model_path": "stub"}}
        if not self.renamed:
            routes |= {f"/get_{k[1:]}": v for k, v in routes.items()}
        if path == "/metrics":
            labels = f'{{model_name="{server.model}"}}'
            told = f"sglang:num_running_reqs{labels} {server.engine.running}\n"
            return told if self.answered else "# no series\n"
        return routes.get(path) or super().get(path, server)

    def prepare(self, body: Body) -> Body:
        kept = super().prepare(body)
        return {**kept, "cache_salt": body.get("extra_key") or body.get("cache_salt")}

    def answer(self, answer: Body, body: Body) -> Body:
        answer.pop("system_fingerprint", None)
        answer.pop("prompt_token_ids", None)
        for choice in answer["choices"]:
            choice.pop("token_ids", None)
            choice["matched_stop"] = None
        return {**answer, "metadata": {"weight_version": "default"}}


class LlamaCpp(Family):
    """llama-server (tools/server/README.md): /props, /slots, 501 for /metrics without --metrics,
    ``timings.cache_n``, ids in log-probabilities, temperature 0.8 where none is given."""

    owner = "llamacpp"
    missing = {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}

    def get(self, path: str, server: FamilyServer) -> Any:
        if path == "/props":
            return {
                "default_generation_settings": {"n_ctx": 4096, "params": {"temperature": 0.8}},
                "total_slots": 4,
                "model_path": "/models/stub.gguf",
                "build_info": "b6700-3df2244d",
            }
        if path == "/slots":
            return [{"id": i, "is_processing": False} for i in range(4)]
        if path == "/metrics":
            message = "This server does not support metrics endpoint. Start it with `--metrics`"
            error = {"code": 501, "message": message, "type": "not_supported_error"}
            raise Refused(501, {"error": error})
        return super().get(path, server)

    def tokenize(self, body: Body, engine: Engine) -> Any:
        text = body.get("content")
        return {"tokens": list(engine.prompt_of({"prompt": text})) if text else []}

    def prepare(self, body: Body) -> Body:
        # The cold lever of the plain engine is a salt of its own.
        kept = super().prepare(body)
        return kept if body.get("cache_prompt", True) else {**kept, "cache_salt": uuid.uuid4().hex}

    def answer(self, answer: Body, body: Body) -> Body:
        usage = answer["usage"]
        cached = usage.pop("prompt_tokens_details", {}).get("cached_tokens", 0)
        for entry in entries(answer):
            entry["id"] = int(entry["token"].strip(" w<>eos") or 0)
            for top in entry["top_logprobs"]:
                top["id"] = int(top["token"].strip(" w<>eos") or 0)
        told = {"cache_n": cached, "prompt_n": usage["prompt_tokens"] - cached, "predicted_ms": 1.5}
        return {
            **answer,
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "system_fingerprint": "b6700-3df2244d",
            "timings": told,
        }


class LlamaCppPython(Family):
    """llama-cpp-python's server without --logits_all: log-probabilities are a ValueError, which
    its error route turns into a 500 (llama_cpp/server/errors.py)."""

    owner = "me"

    def __init__(self, *, logits_all: bool = False) -> None:
        super().__init__()
        self.logits_all = logits_all

    def check(self, body: Body, path: str, headers: Mapping[str, str]) -> None:
        if body.get("logprobs") and not self.logits_all:
            message = "logprobs is not supported for models created with logits_all=False"
            error = {"message": message, "type": "internal_server_error"}
            raise Refused(500, {"error": {**error, "param": None, "code": None}})

    def answer(self, answer: Body, body: Body) -> Body:
        answer.pop("system_fingerprint", None)
        return {**answer, "id": f"chatcmpl-{uuid.uuid4()}"}


class TransformersServe(Family):
    """Unknown fields are a 422, log-probabilities ignored (5.x) or a 422 (4.x, ``strict``); an
    empty fingerprint (transformers/cli/serving)."""

    completions = None
    owner = "HuggingFaceTB"

    def __init__(self, *, strict: bool = False) -> None:
        super().__init__()
        self.strict = strict

    def check(self, body: Body, path: str, headers: Mapping[str, str]) -> None:
        known = CHAT_FIELDS - ({"logprobs", "top_logprobs", "n"} if self.strict else set())
        unknown = body.keys() - known
        if unknown:
            raise Refused(422, {"detail": f"Unexpected fields in the request: {unknown}"})

    def prepare(self, body: Body) -> Body:
        kept = super().prepare(body)
        return {k: v for k, v in kept.items() if k not in ("logprobs", "top_logprobs")}

    def answer(self, answer: Body, body: Body) -> Body:
        return {**answer, "system_fingerprint": ""}

    def headers(self) -> dict[str, str]:
        return {"server": "uvicorn"}
