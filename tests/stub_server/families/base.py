"""What a family may change in the stub server, and the server around it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from tests.stub_server.behaviour import Behaviour
from tests.stub_server.bodies import Unsupported, chat_body, completion_body
from tests.stub_server.engine import Engine
from tests.stub_server.server import StubServer, _Handler

Body = dict[str, Any]
SAMPLING = {"temperature", "top_p", "seed", "n", "stop", "stream", "max_tokens", "messages"}
VLLM_FIELDS = frozenset({"return_token_ids", "continue_final_message", "cache_salt"})
CHAT_FIELDS = {*SAMPLING, "model", "logprobs", "top_logprobs", "user", "max_completion_tokens"}


class Refused(Exception):
    def __init__(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers or {}


def openai_error(message: str, **fields: Any) -> Body:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return {"error": {**error, **fields}}


class Family:
    """Accepts what the plain stub accepts; subclasses say what differs."""

    chat = "/v1/chat/completions"
    completions: str | None = "/v1/completions"
    missing: Any = {"detail": "Not Found"}
    owner = "vllm"
    extras: frozenset[str] = frozenset()
    """Fields beyond OpenAI's that it understands; the others are ignored."""

    def __init__(self) -> None:
        self.answered = 0

    def get(self, path: str, server: FamilyServer) -> Any:
        """What a GET returns (text is sent as text); None is a 404."""
        if path == "/v1/models":
            entry = {"id": server.model, "object": "model", "created": 0, "owned_by": self.owner}
            return {"object": "list", "data": [entry]}
        return None

    def tokenize(self, body: Body, engine: Engine) -> Any:
        return None

    def check(self, body: Body, path: str, headers: Mapping[str, str]) -> None:
        """Raise :class:`Refused` for what this family refuses."""

    def prepare(self, body: Body) -> Body:
        """What reaches the engine of the request."""
        return {k: v for k, v in body.items() if k not in VLLM_FIELDS - self.extras}

    def answer(self, answer: Body, body: Body) -> Body:
        return answer

    def headers(self) -> dict[str, str]:
        return {}

    def packed(self, data: bytes) -> bytes:
        return data


def entries(answer: Body) -> list[Body]:
    """Copies of the per-token entries, put in place (the stub keeps its own)."""
    out: list[Body] = []
    for choice in answer["choices"]:
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
            copied = [dict(e) for e in logprobs["content"]]
            for entry in copied:
                entry["top_logprobs"] = [dict(t) for t in entry["top_logprobs"]]
            choice["logprobs"] = {**logprobs, "content": copied}
            out += copied
    return out


class FamilyServer(StubServer):
    """``with FamilyServer(TGI(), Behaviour(...)) as server``."""

    def __init__(self, family: Family, behaviour: Behaviour | None = None) -> None:
        self.family = family
        super().__init__(behaviour)

    def handler(self) -> type[_FamilyHandler]:
        return type("FamilyHandler", (_FamilyHandler,), {"stub": self})


class _FamilyHandler(_Handler):
    stub: FamilyServer

    def do_GET(self) -> None:
        self.stub.requests.append((self.path, None, dict(self.headers)))
        if self._faulty(self.path):
            return
        try:
            found = self.stub.family.get(urlsplit(self.path).path, self.stub)
        except Refused as refused:
            self._json(refused.status, refused.body)
            return
        self._told(404, self.stub.family.missing) if found is None else self._told(200, found)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        self.stub.requests.append((self.path, body, dict(self.headers)))
        if self._faulty(self.path):
            return
        try:
            self._posted(body)
        except Refused as refused:
            self._told(refused.status, refused.body, refused.headers)
        except Unsupported as error:
            self._json(error.status, openai_error(str(error)))

    def _posted(self, body: Body) -> None:
        stub, family = self.stub, self.stub.family
        path = urlsplit(self.path).path
        if path == "/tokenize":
            found = family.tokenize(body, stub.engine)
            self._told(404, family.missing) if found is None else self._told(200, found)
            return
        if path not in (family.chat, family.completions):
            self._told(404, family.missing)
            return
        family.check(body, self.path, {k.lower(): v for k, v in self.headers.items()})
        kept = family.prepare(body)
        make = chat_body if path == family.chat else completion_body
        replica = stub.engine.replica()
        answer = family.answer(make(stub.engine, stub.model, kept, replica), kept)
        family.answered += 1
        data = family.packed(json.dumps(answer).encode())
        self._send(200, "application/json", data, family.headers())

    def _told(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        if isinstance(body, str):
            self._send(status, "text/plain", body.encode(), headers)
        else:
            self._json(status, body, headers)

    def send_header(self, keyword: str, value: str) -> None:
        if keyword.lower() != "server" or "server" not in self.stub.family.headers():
            super().send_header(keyword, value)
        elif value == "uvicorn":
            super().send_header(keyword, value)
