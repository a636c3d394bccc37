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

It answers one request at a time, so bursts have no witness unless time betrays one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.running import llamacpp, named
from tests.servers.test_vllm import STORY, diagnose

pytestmark = pytest.mark.servers


def test_greedy_requests_are_not_accused_of_load(tmp_path: Path) -> None:
    """One slot, one request at a time: no batch effect can exist, and none may be claimed."""
    with llamacpp(Path(named("DETDIAG_GGUF")), tmp_path / "log") as url:
        done = diagnose(tmp_path, url)
    assert done.verdict["status"] in ("clean", "inconclusive"), done.verdict["sentence"]


def test_its_own_default_temperature_is_config(tmp_path: Path) -> None:
    """A request without temperature samples at 0.8 there."""
    with llamacpp(Path(named("DETDIAG_GGUF")), tmp_path / "log") as url:
        body = {"messages": [{"role": "user", "content": STORY}]}
        done = diagnose(tmp_path, url, request=body)
    assert done.verdict["layer"] == "config", done.verdict["sentence"]
