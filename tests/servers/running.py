"""Real servers as context managers, each in its own virtual environment."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest

START_S = float(os.environ.get("DETDIAG_SERVER_START_S", "600"))
NAME = "smollm2"


def named(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set (see the docstring of tests/servers)")
    return value


@contextlib.contextmanager
def vllm(model: Path, log: Path, *options: str) -> Iterator[str]:
    """URL of vLLM on the CPU, bfloat16. Two threads: how they share the work follows the
    batch; with one there is nothing to share. They wait without spinning, which costs a step
    seconds on a machine that does anything else."""
    words = [named("DETDIAG_VLLM_PYTHON"), "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", str(model), "--served-model-name", NAME]
    words += ["--dtype", "bfloat16", "--max-model-len", "1024", *options]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "PASSIVE",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with _started(words, settings, log) as url:
        yield url


@contextlib.contextmanager
def llamacpp(model: Path, log: Path, *options: str) -> Iterator[str]:
    """URL of llama-cpp-python's server."""
    words = [named("DETDIAG_LLAMACPP_PYTHON"), "-m", "llama_cpp.server"]
    words += ["--model", str(model), "--model_alias", NAME, "--logits_all", "true"]
    with _started([*words, *options], {"OMP_NUM_THREADS": "1"}, log) as url:
        yield url


@contextlib.contextmanager
def _started(words: Sequence[str], settings: dict[str, str], log: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = {**os.environ, **settings, "HF_HUB_OFFLINE": "1"}
    with open(log, "wb") as out:
        command = [*words, "--host", "127.0.0.1", "--port", str(port)]
        server = subprocess.Popen(
            command, stdout=out, stderr=out, env=environment, start_new_session=True
        )
        try:
            _wait(server, url, log)
            yield url
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/v1/models", timeout=5).status_code == 200:
                return
        time.sleep(1)
    pytest.fail(f"the server did not start: {log.read_text('utf-8', 'replace')[-2000:]}")


def copied(model: Path, folder: Path) -> Path:
    """The model's files in a folder of their own."""
    shutil.copytree(model, folder)
    return folder


def other_weights(model: Path, folder: Path) -> Path:
    """A copy in which one matrix of one block is a fiftieth larger."""
    from safetensors.torch import load_file, save_file

    copied(model, folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    name = next(n for n in sorted(weights) if n.endswith("10.mlp.down_proj.weight"))
    weights[name] = weights[name] * 1.02
    save_file(weights, file, metadata={"format": "pt"})
    return folder
