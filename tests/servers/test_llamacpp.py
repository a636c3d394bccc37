"""llama-cpp-python's server with SmolLM2: ``pytest -m servers tests/servers/test_llamacpp.py``.

Set up once (the build takes about ten minutes on two cores)::

    python3 -m venv llama-env
    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON" \\
      llama-env/bin/pip install "llama-cpp-python[server]"
    export DETDIAG_LLAMACPP_PYTHON=$PWD/llama-env/bin/python
    export DETDIAG_GGUF=SmolLM2-135M-Instruct.Q4_1.gguf

The server is started as::

    $DETDIAG_LLAMACPP_PYTHON -m llama_cpp.server --model $DETDIAG_GGUF --model_alias smollm2 \\
      --logits_all true

It answers one request at a time and goes on from what it computed last.
"""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.servers.running import NAME, llamacpp, named
from tests.servers.test_vllm import LONG, STORY, diagnose

pytestmark = pytest.mark.servers


def moves_after_another_prompt(url: str) -> bool:
    """By another road: does the same request answer otherwise once another one came between?"""

    def ask(messages: object) -> object:
        body = {"model": NAME, "messages": messages, "temperature": 0, "max_tokens": 4}
        body |= {"logprobs": True, "top_logprobs": 8}
        reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600)
        return reply.json()["choices"][0]["logprobs"]

    ask(LONG)
    again = ask(LONG)
    assert ask(LONG) == again, "it does not repeat itself"
    ask([{"role": "user", "content": "Sort these words: " + " ".join(map(str, range(150)))}])
    return ask(LONG) != again


def test_what_its_one_slot_held_is_named_and_load_is_not(tmp_path: Path) -> None:
    """One request at a time: no batch effect can exist. After another prompt it computes this one
    anew, with other bits than those that it keeps."""
    with llamacpp(Path(named("DETDIAG_GGUF")), tmp_path / "log") as url:
        moves = moves_after_another_prompt(url)
        done = diagnose(tmp_path, url)
    verdict = done.verdict
    if moves:
        assert verdict["rule"] == "batch.prefix-reuse", verdict["sentence"]
    else:
        assert verdict["status"] in ("clean", "inconclusive"), verdict["sentence"]


def test_its_own_default_temperature_is_config(tmp_path: Path) -> None:
    """A request without temperature samples at 0.8 there."""
    with llamacpp(Path(named("DETDIAG_GGUF")), tmp_path / "log") as url:
        body = {"messages": [{"role": "user", "content": STORY}]}
        done = diagnose(tmp_path, url, request=body)
    assert done.verdict["layer"] == "config", done.verdict["sentence"]
