"""``transformers serve`` with continuous batching on the embedded model, diagnosed at text level.

That server returns no log-probabilities, so nothing below the text can be seen.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from detdiag.demo import DEMO_PROMPTS, demo_path
from tests.endpoint.command import Done, detdiag_run

MISSING = [
    m
    for m in ("fastapi", "uvicorn", "openai", "pydantic", "accelerate")
    if not importlib.util.find_spec(m)
]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"transformers serve needs {', '.join(MISSING)}: install the test extra"
)
START_S = 180.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(URL, model name) of a running server."""
    folder = tmp_path_factory.mktemp("serve")
    model = str(demo_path("dense"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", model]
    command += ["--continuous-batching", "--device", "cpu", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--cb-num-blocks", "1024", "--cb-block-size", "16"]
    command += ["--cb-max-batch-tokens", "256"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            _wait(server, url, folder / "log")
            yield url, model
        finally:
            server.terminate()
            server.wait(20)


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if server.poll() is not None:
            break
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.3)
    pytest.fail(f"the server did not start: {log.read_text('utf-8', 'replace')[-1500:]}")


def diagnosed(served: tuple[str, str], folder: Path) -> Done:
    url, model = served
    request = folder / "request.json"
    body = {"messages": [{"role": "user", "content": DEMO_PROMPTS[0]}], "temperature": 0}
    request.write_text(json.dumps(body))
    return detdiag_run(
        [url], folder, "--model-name", model, "--request", str(request),
        "--max-requests", "110", "--budget", "45s", "--max-new-tokens", "12",
    )  # fmt: skip


def test_a_greedy_server_is_judged_by_its_text(served: tuple[str, str], tmp_path: Path) -> None:
    done = diagnosed(served, tmp_path)
    assert done.report is not None, done.shown
    rows = {row["name"]: row for row in done.report["data"]["capabilities"]}
    assert rows["chat log-probabilities"]["state"] in ("refused", "absent"), rows
    assert "decode" in done.verdict["untested"] and "moe" in done.verdict["untested"]
    assert done.verdict["divergence"] in ("none", "text"), done.verdict
    assert done.verdict["layer"] in (None, "batch"), done.verdict["sentence"]
    if done.verdict["layer"] == "batch":
        assert done.verdict["rule"] == "batch.load-sensitive", done.verdict
    print(done.verdict["sentence"])
