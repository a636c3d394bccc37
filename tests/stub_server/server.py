"""The HTTP side: routes, bodies as vLLM writes them, and the faults of a hostile server."""

from __future__ import annotations

import gzip
import itertools
import json
import ssl
import threading
import time
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson

from tests.stub_server.behaviour import Behaviour, Fault
from tests.stub_server.bodies import Unsupported, chat_body, completion_body
from tests.stub_server.engine import Engine, digest

HANG_S = 30.0


class StubServer:
    """``with StubServer(Behaviour(...)) as server: server.url``; ``requests`` keeps what came."""

    def __init__(
        self,
        behaviour: Behaviour | None = None,
        model: str = "stub",
        certificate: Path | None = None,
    ) -> None:
        self.model = model
        self.engine = Engine(behaviour or Behaviour())
        self.requests: list[tuple[str, Any, dict[str, str]]] = []
        self.numbers = itertools.count()
        self.cache: dict[str, dict[str, Any]] = {}
        self.closing = threading.Event()
        self._http = _Http(("127.0.0.1", 0), self.handler())
        self.scheme = "http" if certificate is None else "https"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # The handshake is the connection's own business: one that fails holds up nobody.
            self._http.socket = context.wrap_socket(
                self._http.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def behaviour(self) -> Behaviour:
        return self.engine.behaviour

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self._http.server_address[1]}"

    def handler(self) -> type[BaseHTTPRequestHandler]:
        return _handler(self)

    def become(self, behaviour: Behaviour) -> None:
        """Redeploy: another behaviour at the same address, all state lost."""
        self.engine = Engine(behaviour)
        self.cache.clear()

    def __enter__(self) -> StubServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()


@lru_cache
def _bomb() -> bytes:
    """16 MiB in 16 KiB."""
    return gzip.compress(bytes(2**24))


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news."""


def _handler(stub: StubServer) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"stub": stub})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    stub: StubServer

    def setup(self) -> None:
        super().setup()
        self.replica = self.stub.engine.replica()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        stub, behaviour = self.stub, self.stub.behaviour
        stub.requests.append((self.path, None, dict(self.headers)))
        if self._faulty(self.path):
            return
        path = self.path.removeprefix("/v1")
        if path == "/models":
            entry = {
                "id": stub.model,
                "object": "model",
                "owned_by": behaviour.owner,
                "max_model_len": 1024,
            }
            self._json(200, {"object": "list", "data": [entry]})
        elif path == "/version" and behaviour.version:
            self._json(200, {"version": behaviour.version})
        elif path == "/health":
            self._json(200, {})
        elif path == "/metrics" and behaviour.metrics:
            gauge = f'vllm:num_requests_running{{model_name="{stub.model}"}}'
            self._send(200, "text/plain", f"{gauge} {stub.engine.running}.0\n".encode())
        else:
            self._json(404, {"error": {"message": "Not Found", "code": 404}})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(raw or b"null")
        except ValueError:
            body = None
        self.stub.requests.append((self.path, body, dict(self.headers)))
        if self._faulty(self.path):
            return
        path = self.path.removeprefix("/v1")
        if path == "/tokenize" and self.stub.behaviour.tokenizer:
            ids = self.stub.engine.prompt_of(body)
            self._json(200, {"count": len(ids), "max_model_len": 1024, "tokens": list(ids)})
        elif path == "/reset_prefix_cache":
            self.stub.engine.blocks.clear()
            self._json(200, {})
        elif path in ("/chat/completions", "/completions"):
            self._complete(body, raw, chat=path.startswith("/chat"))
        else:
            self._json(404, {"error": {"message": "Not Found", "code": 404}})

    def _complete(self, body: dict[str, Any], raw: bytes, *, chat: bool) -> None:
        stub, behaviour = self.stub, self.stub.behaviour
        if body.get("model") != stub.model:
            message = f"The model `{body.get('model')}` does not exist."
            self._json(404, {"error": {"message": message, "code": 404}})
            return
        if not 0 < float(body.get("top_p") or 1) <= 1:
            self._json(400, {"error": {"message": "top_p must be in (0, 1]", "code": 400}})
            return
        key = digest(f"{self.path} {raw!r}")
        if behaviour.response_cache and key in stub.cache:
            self._json(200, stub.cache[key], {"x-litellm-cache-key": key})
            return
        per_request = behaviour.choose_replica == "request"
        replica = stub.engine.replica() if per_request else self.replica % behaviour.replicas
        try:
            make = chat_body if chat else completion_body
            answer = make(stub.engine, stub.model, body, replica)
        except Unsupported as error:
            self._json(error.status, {"error": {"message": str(error), "code": error.status}})
            return
        stub.cache[key] = answer
        headers = {"x-replica": f"pod-{replica}"} if behaviour.replica_header else {}
        self._json(200, answer, headers)

    def _json(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, "application/json", orjson.dumps(body), headers)

    def _send(
        self, status: int, kind: str, data: bytes, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _faulty(self, path: str) -> bool:
        """Whether this request was answered by a fault."""
        choose = self.stub.behaviour.fault
        fault = choose(next(self.stub.numbers), path) if choose else None
        if fault is None:
            return False
        self._fail(fault)
        return True

    def _fail(self, fault: Fault) -> None:
        text = {"id": "x", "object": "chat.completion", "created": 1, "choices": []}
        choice = {"index": 0, "message": {"role": "assistant", "content": " hm"}}
        if fault == "500":
            self._json(500, {"error": {"message": "engine is dead", "code": 500}})
        elif fault == "429":
            self._json(429, {"error": {"message": "slow down", "code": 429}}, {"Retry-After": "0"})
        elif fault == "wait":
            limit = {"error": {"message": "Rate limit reached", "type": "requests"}}
            self._json(429, limit, {"Retry-After": "3600", "x-ratelimit-remaining-requests": "0"})
        elif fault == "401":
            self._json(401, {"error": {"message": "Incorrect API key provided", "code": 401}})
        elif fault == "html":
            page = b"<!DOCTYPE html><html><head><title>502 Bad Gateway</title></head></html>"
            self._send(502, "text/html", page)
        elif fault == "half":
            broken = {**choice, "error": {"code": 502, "message": "Provider disconnected"}}
            self._json(200, {**text, "model": self.stub.model, "choices": [broken]})
        elif fault == "abort":
            broken = {**choice, "finish_reason": "abort"}
            self._json(200, {**text, "model": self.stub.model, "choices": [broken]})
        elif fault == "bomb":
            self._send(200, "application/json", _bomb(), {"Content-Encoding": "gzip"})
        elif fault == "hang":
            self.stub.closing.wait(HANG_S)
            self.close_connection = True
        elif fault == "reset":
            self.close_connection = True
        elif fault == "truncate":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "500")
            self.end_headers()
            self.wfile.write(b'{"id": "x", "choices": [{"message"')
            self.close_connection = True
        elif fault == "bad-json":
            self._send(200, "application/json", b'{"id": "x", "choices": [{"mess')
        elif fault == "not-json":
            self._send(200, "application/json", b"\xff\xfe\x00 upstream connect error")
        elif fault == "content-type":
            self._send(200, "text/html", b"<html><body>Sign in\x1b[2J</body></html>")
        elif fault == "huge":
            self._huge()
        elif fault == "other-model":
            self._json(200, {**text, "model": "another", "choices": [choice]})
        elif fault == "redirect":
            self._send(307, "text/plain", b"", {"Location": "http://127.0.0.1:9/v1/elsewhere"})
        elif fault == "no-choices":
            self._json(200, {**text, "model": self.stub.model})
        else:
            self._json(200, None)

    def _huge(self) -> None:
        """A body that never ends, in chunks, until the client hangs up."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        piece = b" " * 65536
        end = time.monotonic() + HANG_S
        while time.monotonic() < end and not self.stub.closing.is_set():
            self.wfile.write(b"10000\r\n" + piece + b"\r\n")
