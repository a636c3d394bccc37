"""Audits as an engineer meets them: what goes in, what has to be named, what must not be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from detdiag.audit import audit_files
from detdiag.evidence.finding import Finding

SAMPLING, IGNORED, DEFAULT = "sampling_still_on", "ignored_parameter", "unspecified_default"
BEST, BATCH, ERROR = "best_effort_only", "breaks_batch_invariance", "unsupported_error"
CHAT = [{"role": "user", "content": "What does a lock keeper do?"}]
SHIPPED = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20,
           "transformers_version": "4.51.0", "eos_token_id": 2}


@dataclass(frozen=True)
class Audit:
    """``expect`` are (kind, subject) pairs that must be found; ``never`` are kinds (or pairs)
    that must not be."""

    name: str
    files: dict[str, Any]
    expect: tuple[tuple[str, str], ...] = ()
    never: tuple[Any, ...] = ()
    surface: str | None = None
    version: str | None = None


def request(**fields: Any) -> dict[str, Any]:
    return {"request.json": {"messages": CHAT, **fields}}


GREEDY = (SAMPLING, ERROR, IGNORED)
AUDITS = (
    # Launch lines with a lot of other flags around what matters.
    Audit("vllm docker run", {"server_args.txt": (
        "docker run --rm --gpus all --shm-size 16g -v ~/.cache:/root/.cache -p 8000:8000 "
        "--ipc=host -e HF_TOKEN=x vllm/vllm-openai:v0.9.1 --model meta-llama/Llama-3.1-8B-Instruct "
        "--served-model-name llama --max-model-len 8192 --gpu-memory-utilization 0.92 --port 8000 "
        "--enable-auto-tool-choice --tool-call-parser llama3_json --disable-log-requests\n")},
        ((DEFAULT, "--seed"), (BATCH, "VLLM_BATCH_INVARIANT"), (BATCH, "--enable-prefix-caching"),
         (BATCH, "--disable-cascade-attn")), (SAMPLING, ERROR)),
    Audit("vllm hardened line", {"server_args.txt": (
        "# surface: vllm.engine\nVLLM_BATCH_INVARIANT=1 vllm serve Qwen/Qwen3-8B --seed 7 "
        "--generation-config vllm --no-enable-prefix-caching --attention-backend FLASH_ATTN "
        "--dtype float32 --max-model-len 4096 --api-key k --uvicorn-log-level warning\n")},
        (), (SAMPLING, ERROR, BATCH, DEFAULT, IGNORED), version="0.18.0"),
    Audit("vllm spec decode and tp", {"run.sh": (
        "#!/bin/bash\nset -euo pipefail\nexport CUDA_VISIBLE_DEVICES=0,1\n"
        "exec vllm serve m -tp 2 --speculative-config '{\"method\":\"eagle\",\"num_speculative_tokens\":3}' \\\n"
        "  --max-num-batched-tokens 8192 --swap-space 4 --block-size 16\n")},
        ((BATCH, "--speculative-config"), (BATCH, "-tp")), (SAMPLING,), version="0.18.0"),
    Audit("vllm flashinfer under batch invariance", {"run.sh": (
        "export VLLM_BATCH_INVARIANT=1\nexport VLLM_ATTENTION_BACKEND=FLASHINFER\nvllm serve m --port 1\n")},
        ((ERROR, "VLLM_ATTENTION_BACKEND"),), (SAMPLING,), version="0.18.0"),
    Audit("vllm marlin atomics in env file", {"serving.env": "VLLM_MARLIN_USE_ATOMIC_ADD=1\nHF_HOME=/models\n"},
          ((BATCH, "VLLM_MARLIN_USE_ATOMIC_ADD"),), (SAMPLING, ERROR)),
    Audit("vllm synthetic acceptance", {"server_args.txt": (
        "vllm serve m --speculative-config '{\"method\":\"ngram\",\"rejection_sample_method\":\"synthetic\"}'")},
        ((SAMPLING, "rejection_sample_method"),)),
    Audit("vllm fp8 cache", {"server_args.txt": "vllm serve m --kv-cache-dtype fp8_e4m3 --calculate-kv-scales --port 9"},
          ((BATCH, "--calculate-kv-scales"),), (SAMPLING, ERROR)),
    Audit("vllm lora and awq", {"server_args.txt": "vllm serve m --enable-lora --quantization awq_marlin --max-loras 4"},
          ((BATCH, "--enable-lora"), (BATCH, "--quantization"))),
    Audit("vllm moe model", {"server_args.txt": "vllm serve Qwen/Qwen3-30B-A3B --max-num-seqs 64"},
          ((BATCH, "VLLM_BATCH_INVARIANT"),)),
    Audit("vllm flags one a line", {"server_args.txt": (
        "# surface: vllm.engine\n--model m\n--override-generation-config {\"temperature\":0.8}\n--port 80\n")
        .replace('{"temperature":0.8}', "'{\"temperature\":0.8}'")},
        ((SAMPLING, "--override-generation-config"),)),
    Audit("sglang default line", {"server_args.txt": (
        "python3 -m sglang.launch_server --model-path m --host 0.0.0.0 --port 30000 --mem-fraction-static 0.85 "
        "--context-length 32768 --log-level info --trust-remote-code")},
        ((BATCH, "--disable-radix-cache"), (BATCH, "--enable-deterministic-inference"),
         (DEFAULT, "--random-seed")), (SAMPLING, ERROR), version="0.5.18"),
    Audit("sglang deterministic", {"server_args.txt": (
        "python3 -m sglang.launch_server --model-path m --enable-deterministic-inference --attention-backend fa3 --random-seed 1")},
        (), (SAMPLING, ERROR, BATCH, DEFAULT), version="0.5.18"),
    Audit("sglang bad backend", {"server_args.txt": (
        "sglang serve --model-path m --enable-deterministic-inference --attention-backend torch_native")},
        ((ERROR, "--attention-backend"),), (SAMPLING,)),
    Audit("sglang lossy acceptance", {"server_args.txt": (
        "sglang serve --model-path m --speculative-algorithm EAGLE --speculative-accept-threshold-acc 0.9")},
        ((SAMPLING, "--speculative-accept-threshold-acc"),)),
    Audit("llama-server line", {"server_args.txt": (
        "./build/bin/llama-server -m /models/q4.gguf -c 16384 -ngl 99 --host 0.0.0.0 --port 8080 -np 8 -fa on "
        "--temp 0.7 --metrics --jinja")},
        ((SAMPLING, "--temp"), (BATCH, "-np"), (BATCH, "cache_prompt")), (ERROR,)),
    Audit("llama-server greedy single slot", {"server_args.txt": (
        "llama-server -m q.gguf --temp 0 -np 1 --no-cache-prompt --seed 1 -ngl 99")},
        (), (SAMPLING, ERROR, BATCH, DEFAULT)),
    Audit("llama-server draft", {"server_args.txt": "llama-server -m q.gguf -md d.gguf --temp 0 -np 1 --no-cache-prompt"},
          (), (SAMPLING,)),
    Audit("ollama serve env", {"compose.yaml": (
        "services:\n  ollama:\n    image: ollama/ollama:0.12.0\n    ports: ['11434:11434']\n"
        "    environment:\n      - OLLAMA_NUM_PARALLEL=4\n      - OLLAMA_KEEP_ALIVE=24h\n")},
        ((BATCH, "OLLAMA_NUM_PARALLEL"),), (SAMPLING, ERROR)),
    Audit("modelfile warm", {"Modelfile": "FROM llama3.2\nPARAMETER temperature 0.8\nPARAMETER num_ctx 8192\nSYSTEM \"\"\"x\"\"\"\n"},
          ((SAMPLING, "temperature"),)),
    Audit("modelfile greedy", {"Modelfile": "FROM llama3.2\nPARAMETER temperature 0\nPARAMETER seed 1\n"}, (), GREEDY),
    Audit("trtllm line", {"server_args.txt": "trtllm-serve m --backend pytorch --max_batch_size 64 --port 8000"},
          ((BATCH, "FORCE_DETERMINISTIC"),), (SAMPLING, ERROR)),
    Audit("trtllm deterministic", {"server_args.txt": "FORCE_DETERMINISTIC=1 trtllm-serve m --tp_size 2"}, (), (SAMPLING, BATCH, ERROR)),
    Audit("lmdeploy prefix cache", {"server_args.txt": "lmdeploy serve api_server m --server-port 23333 --enable-prefix-caching --tp 1"},
          ((BATCH, "--enable-prefix-caching"),), (SAMPLING,)),
    Audit("kubernetes args", {"deploy.yaml": (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: llm}\nspec:\n  replicas: 2\n  template:\n    spec:\n"
        "      containers:\n      - name: vllm\n        image: vllm/vllm-openai:v0.17.1\n        args:\n        - --model=m\n"
        "        - --max-model-len=8192\n        - --enable-prefix-caching\n        env:\n        - name: HF_HOME\n          value: /m\n"
        "        resources: {limits: {nvidia.com/gpu: 1}}\n")},
        ((BATCH, "--enable-prefix-caching"), (BATCH, "--disable-cascade-attn"), (BATCH, "replicas")), (SAMPLING, ERROR)),
    Audit("helm values", {"values.yaml": (
        "servingEngineSpec:\n  modelSpec:\n  - name: m\n    repository: vllm/vllm-openai\n    tag: v0.18.0\n    vllmConfig:\n"
        "      enablePrefixCaching: true\n      maxModelLen: 4096\n      dtype: bfloat16\n      extraArgs: ['--disable-log-requests']\n")},
        ((BATCH, "--enable-prefix-caching"), (BEST, "--dtype")), (SAMPLING, ERROR)),
    Audit("dockerfile", {"Dockerfile": (
        "FROM vllm/vllm-openai:v0.18.0\nENV VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE=1\nEXPOSE 8000\n"
        "CMD [\"--model\", \"m\", \"--enable-lora\"]\n")},
        ((BATCH, "VLLM_ENABLE_INDUCTOR_MAX_AUTOTUNE"), (BATCH, "--enable-lora")), (SAMPLING,)),
    Audit("torch environment", {".env": "NVIDIA_TF32_OVERRIDE=1\nCUBLAS_WORKSPACE_CONFIG=:4096:8\n"},
          ((BATCH, "NVIDIA_TF32_OVERRIDE"),), (SAMPLING, (BATCH, "CUBLAS_WORKSPACE_CONFIG"))),
    # Requests to engines.
    Audit("vllm tiny temperature", request(model="m", temperature=1e-8), ((SAMPLING, "temperature"),), surface="vllm.openai_request"),
    Audit("vllm greedy", request(model="m", temperature=0, top_p=0.5, max_tokens=9, user="u", stream=True), (), GREEDY,
          surface="vllm.openai_request"),
    Audit("vllm several greedy choices", request(model="m", temperature=0, n=4), ((ERROR, "n"),), (SAMPLING,), surface="vllm.openai_request"),
    Audit("vllm seed minus one", request(model="m", temperature=0.4, seed=-1), ((IGNORED, "seed"), (SAMPLING, "temperature")),
          surface="vllm.openai_request"),
    Audit("vllm checkpoint temperature", {**request(model="m"), "generation_config.json": SHIPPED, "server_args.txt": "vllm serve m"},
          ((SAMPLING, "temperature"),), version="0.10.0"),
    Audit("vllm ignores do_sample of the file", {**request(model="m", temperature=0), "generation_config.json": SHIPPED,
          "server_args.txt": "vllm serve m --seed 0"}, (), ((SAMPLING, "do_sample"), (SAMPLING, "temperature"), ERROR), version="0.10.0"),
    Audit("sglang seed without the mode", request(model="m", temperature=0.7, seed=3), ((IGNORED, "seed"), (SAMPLING, "temperature")),
          surface="sglang.openai_request"),
    Audit("sglang greedy", request(model="m", temperature=0), (), GREEDY, surface="sglang.openai_request"),
    Audit("llama-server temp typo", {"request.json": {"prompt": "x", "n_predict": 8, "temp": 0}},
          ((IGNORED, "temp"), (SAMPLING, "temperature"))),
    Audit("llama-server samplers", {"request.json": {"prompt": "x", "temperature": 0, "samplers": ["top_k", "top_p"]}},
          ((SAMPLING, "samplers"),)),
    Audit("llama-server xtc", {"request.json": {"prompt": "x", "temperature": 0, "xtc_probability": 0.5}}, ((SAMPLING, "xtc_probability"),)),
    Audit("llama-server greedy", {"request.json": {"prompt": "x", "temperature": 0, "n_predict": 8, "cache_prompt": False}}, (), GREEDY),
    Audit("llama-server negative temperature is greedy", {"request.json": {"prompt": "x", "temperature": -1, "cache_prompt": False}}, (), GREEDY),
    Audit("llama-cpp-python negative temperature samples", {"request.json": {"prompt": "x", "temperature": -1}},
          ((SAMPLING, "temperature"),), surface="llamacpp.python"),
    Audit("ollama top level", {"request.json": {"model": "m", "prompt": "x", "temperature": 0, "seed": 1, "stream": False}},
          ((IGNORED, "temperature"), (IGNORED, "seed"), (SAMPLING, "temperature")), surface="ollama.api"),
    Audit("ollama options", {"request.json": {"model": "m", "prompt": "x", "stream": False,
          "options": {"temperature": 0, "seed": 1, "repeat_penalty": 1.0}}}, (), GREEDY),
    Audit("ollama openai route over modelfile", {**request(model="m"), "Modelfile": "FROM m\nPARAMETER temperature 0\n"},
          ((SAMPLING, "temperature"),), surface="ollama.openai_api"),
    Audit("tgi chat zero beside top_p", request(model="tgi", temperature=0, top_p=0.9), ((SAMPLING, "top_p"),), surface="tgi.chat"),
    Audit("tgi chat greedy", request(model="tgi", temperature=0), (), GREEDY, surface="tgi.chat"),
    Audit("tgi generate bare", {"request.json": {"inputs": "x"}}, ((SAMPLING, "parameters"),)),
    Audit("tgi generate zero", {"request.json": {"inputs": "x", "parameters": {"temperature": 0}}}, ((ERROR, "temperature"),)),
    Audit("tgi generate greedy", {"request.json": {"inputs": "x", "parameters": {"do_sample": False, "max_new_tokens": 5}}}, (), GREEDY),
    Audit("trt python default is greedy", {"request.json": {"max_tokens": 8}}, (), GREEDY, surface="tensorrtllm.llm_api"),
    Audit("trt serve default samples", request(model="m"), ((SAMPLING, "temperature"),), surface="tensorrtllm.serve"),
    Audit("lmdeploy turbomind ties", request(model="m", temperature=0), ((SAMPLING, "temperature"),), surface="lmdeploy.turbomind"),
    Audit("lmdeploy pytorch greedy", request(model="m", temperature=0), (), GREEDY, surface="lmdeploy.pytorch", version="0.9.0"),
    Audit("exllama greedy", {"request.json": {"temperature": 0, "top_k": 0}}, (), GREEDY, surface="exllamav2.settings"),
    # transformers.
    Audit("checkpoint samples", {"generation_config.json": SHIPPED}, ((SAMPLING, "do_sample"),)),
    Audit("checkpoint greedy", {"generation_config.json": {"eos_token_id": 2, "transformers_version": "4.51.0"}}, (), (*GREEDY, DEFAULT)),
    Audit("keyword wins", {"generation_config.json": SHIPPED, "generate_kwargs.json": {"do_sample": False, "max_new_tokens": 5}}, (), GREEDY),
    Audit("zero does not undo do_sample", {"generation_config.json": SHIPPED, "generate_kwargs.json": {"temperature": 0}},
          ((ERROR, "temperature"),)),
    Audit("object lost before 5.0", {"generation_config.json": SHIPPED, "generate_kwargs.json": {"generation_config": {"do_sample": False}}},
          ((SAMPLING, "do_sample"),), version="4.57.1"),
    Audit("object kept from 5.0", {"generation_config.json": SHIPPED, "generate_kwargs.json": {"generation_config": {"do_sample": False}}},
          (), GREEDY, version="5.0.0"),
    # Providers.
    Audit("openai default", request(model="gpt-4o-2024-08-06"), ((SAMPLING, "temperature"),), (ERROR,)),
    Audit("openai greedy", request(model="gpt-4o-2024-08-06", temperature=0, seed=1, user="u", metadata={"a": "b"}),
          ((BEST, "temperature"), (BEST, "seed")), (*GREEDY, DEFAULT, BATCH)),
    Audit("openai reasoning", request(model="o3-mini", temperature=0), ((ERROR, "temperature"),)),
    Audit("openai responses seed", {"request.json": {"model": "gpt-4o", "input": "x", "temperature": 0, "seed": 1}}, ((IGNORED, "seed"),), (SAMPLING,)),
    Audit("azure old version", {"request.json": {"url": "https://r.openai.azure.com/openai/deployments/d/chat/completions?api-version=2023-05-15",
          "body": {"messages": CHAT, "temperature": 0, "seed": 1}}}, ((IGNORED, "seed"),), (SAMPLING,)),
    Audit("anthropic both", request(model="claude-sonnet-4-5", max_tokens=9, temperature=0, top_p=0.9), ((ERROR, "top_p"),)),
    Audit("anthropic default", request(model="claude-3-5-haiku-20241022", max_tokens=9), ((SAMPLING, "temperature"),)),
    Audit("anthropic opus 4.7", request(model="claude-opus-4-7", max_tokens=9, temperature=0), ((ERROR, "temperature"),)),
    Audit("gemini greedy", {"request.json": {"contents": [], "generationConfig": {"temperature": 0, "seed": 1, "topP": 1}}},
          ((BEST, "temperature"),), GREEDY),
    Audit("gemini snake case", {"request.json": {"contents": [], "generation_config": {"top_p": 0.9}}}, ((DEFAULT, "temperature"), (DEFAULT, "seed"))),
    Audit("bedrock seed", {"request.json": {"modelId": "amazon.nova-pro-v1:0", "messages": [], "inferenceConfig": {"temperature": 0, "seed": 1}}},
          ((IGNORED, "seed"),), (SAMPLING,)),
    Audit("cohere p", request(model="command-r-plus", temperature=0, p=1.0), ((ERROR, "p"),), (SAMPLING,)),
    Audit("mistral seed", request(model="mistral-large-latest", temperature=0, seed=1), ((IGNORED, "seed"),), (SAMPLING,)),
    Audit("deepseek thinking", request(model="deepseek-reasoner", temperature=0), ((IGNORED, "temperature"),)),
    Audit("deepseek chat greedy", request(model="deepseek-chat", temperature=0), (), GREEDY),
    Audit("groq zero", request(model="llama-3.3-70b-versatile", temperature=0), ((SAMPLING, "temperature"),)),
    Audit("openrouter", request(model="meta-llama/llama-3.1-8b-instruct", temperature=0, seed=1, provider={"order": ["x"]}),
          ((IGNORED, "seed"), (DEFAULT, "provider.allow_fallbacks")), (SAMPLING,)),
    Audit("together seed", request(model="m", temperature=0, seed=1), ((BEST, "seed"),), GREEDY, surface="together.chat"),
    Audit("fireworks default", request(model="accounts/fireworks/models/m"), ((SAMPLING, "temperature"),)),
    Audit("xai seed", request(model="grok-4", temperature=0, seed=1), ((BEST, "seed"),), GREEDY),
    Audit("dashscope range", request(model="qwen-max", temperature=2.0), ((ERROR, "temperature"),)),
    Audit("dashscope native body", {"request.json": {"model": "qwen-plus", "input": {"messages": CHAT},
          "parameters": {"temperature": 0, "seed": 1, "top_k": 1, "result_format": "message"}}}, (), GREEDY),
    Audit("glm zero still samples", request(model="glm-4-plus", temperature=0), ((SAMPLING, "do_sample"),)),
    Audit("glm greedy", request(model="glm-4-plus", do_sample=False), (), GREEDY),
    Audit("kimi fixed", request(model="kimi-k2.5", temperature=0), ((ERROR, "temperature"),)),
    Audit("minimax zero", request(model="MiniMax-M2", temperature=0), ((ERROR, "temperature"),)),
    Audit("doubao greedy", request(model="doubao-1-5-pro-32k-250115", temperature=0), (), GREEDY),
    # Intent against wire.
    Audit("bedrock dropped the zero", {"intent.json": {"temperature": 0}, "request.json": {"messages": [{"role": "user", "content": [{"text": "x"}]}],
          "inferenceConfig": {}}}, ((IGNORED, "temperature"),)),
    Audit("intent kept under another name", {"intent.json": {"temperature": 0, "top_p": 0.5, "max_tokens": 9},
          "request.json": {"contents": [], "generationConfig": {"temperature": 0.0, "topP": 0.5, "maxOutputTokens": 9}}}, (), (IGNORED,)),
    Audit("intent changed", {"intent.json": {"temperature": 0}, **request(model="gpt-4o-2024-08-06", temperature=1)},
          ((IGNORED, "temperature"), (SAMPLING, "temperature"))),
    Audit("glm client chose do_sample", {"intent.json": {"temperature": 0}, **request(model="glm-4-plus", do_sample=False, temperature=0.01)},
          (), ((IGNORED, "seed"), SAMPLING)),
)  # fmt: skip


def _bytes(content: Any) -> bytes:
    return (content if isinstance(content, str) else json.dumps(content)).encode()


def _run(audit: Audit) -> list[Finding]:
    files = {name: _bytes(content) for name, content in audit.files.items()}
    return audit_files(files, surface=audit.surface, engine_version=audit.version).findings


@pytest.mark.parametrize("audit", AUDITS, ids=lambda audit: audit.name)
def test_audit(audit: Audit) -> None:
    found = {(f.kind, f.subject) for f in _run(audit)}
    kinds = {kind for kind, _ in found}
    assert [pair for pair in audit.expect if pair not in found] == []
    assert [bad for bad in audit.never if bad in found or bad in kinds] == []


@pytest.mark.parametrize("audit", AUDITS, ids=lambda audit: audit.name)
def test_only_sampling_that_is_certain_accuses(audit: Audit) -> None:
    for finding in _run(audit):
        if finding.outcome == "failed":
            assert finding.severity == "high"
            assert finding.kind in (SAMPLING, IGNORED)
