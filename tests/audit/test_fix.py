"""Corrected files: nothing samples any more, everything else is as it was, and limits are told."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from detdiag.audit import audit_files
from detdiag.audit.edit_json import remove, set_value
from detdiag.audit.fix import fix_files

FIXABLE: tuple[tuple[str, dict[str, str], str | None], ...] = (
    ("openai", {"request.json": '{"model": "gpt-4o", "messages": [], "temperature": 0.7}'}, None),
    ("openai missing", {"request.json": '{"model": "gpt-4o", "messages": []}'}, None),
    ("anthropic", {"request.json": '{"model": "claude-3-5-haiku-20241022", "max_tokens": 5, "messages": []}'}, None),
    ("gemini", {"request.json": '{"contents": [], "generationConfig": {"temperature": 1, "topP": 0.9}}'}, None),
    ("bedrock", {"request.json": '{"modelId": "amazon.nova-lite-v1:0", "messages": [], "inferenceConfig": {"temperature": 0.5}}'}, None),
    ("glm", {"request.json": '{"model": "glm-4-plus", "messages": [], "temperature": 0}'}, None),
    ("deepseek", {"request.json": '{"model": "deepseek-v4-pro", "messages": [], "temperature": 0}'}, None),
    ("vllm tiny", {"request.json": '{"model": "m", "messages": [], "temperature": 1e-6}'}, "vllm.openai_request"),
    ("vllm file", {"request.json": '{"model": "m", "messages": []}', "server_args.txt": "vllm serve m",
                   "generation_config.json": '{"temperature": 0.6, "transformers_version": "4.51.0"}'}, None),
    ("vllm do_sample false", {"server_args.txt": "vllm serve m --port 1",
                              "generation_config.json": '{"do_sample": false, "temperature": 0.6, "transformers_version": "4.51.0"}'}, None),
    ("sglang", {"request.json": '{"model": "m", "messages": [], "temperature": 0}',
                "server_args.txt": "python -m sglang.launch_server --model-path m --port 1"}, None),
    ("sglang thresholds", {"server_args.txt": "sglang serve --model-path m --speculative-accept-threshold-acc 0.8 --port 1"}, None),
    ("llama-server body", {"request.json": '{"prompt": "x", "temperature": 0, "samplers": ["top_k"], "dynatemp_range": 1, "xtc_probability": 0.5}'}, None),
    ("llama-server line", {"server_args.txt": "llama-server -m m.gguf --temp 0.7 -c 4096"}, None),
    ("llama temp typo", {"request.json": '{"prompt": "x", "n_predict": 4, "temp": 0}'}, None),
    ("ollama top level", {"request.json": '{"model": "m", "prompt": "x", "temperature": 0}'}, "ollama.api"),
    ("modelfile", {"Modelfile": "FROM m\n# warm\nPARAMETER temperature 0.7\n"}, None),
    ("tgi chat", {"request.json": '{"model": "m", "messages": [], "temperature": 0, "top_p": 0.9}'}, "tgi.chat"),
    ("tgi bare", {"request.json": '{"inputs": "x"}'}, None),
    ("tgi warpers", {"request.json": '{"inputs": "x", "parameters": {"top_k": 5, "temperature": 0.5}}'}, None),
    ("trt", {"request.json": '{"model": "m", "messages": []}'}, "tensorrtllm.serve"),
    ("lmdeploy", {"request.json": '{"model": "m", "messages": []}'}, "lmdeploy.turbomind"),
    ("checkpoint", {"generation_config.json": '{\n  "do_sample": true,\n  "top_k": 1,\n  "eos_token_id": 2\n}\n'}, None),
    ("call", {"generation_config.json": '{"do_sample": true, "eos_token_id": 2}',
              "generate_kwargs.json": '{"generation_config": {"max_new_tokens": 5}}'}, None),
    ("override", {"server_args.txt": "vllm serve m --override-generation-config '{\"temperature\": 0.7, \"top_p\": 0.9}' --port 1"}, None),
    ("compose", {"compose.yaml": "# stack\nservices:\n  llm:  # model\n    image: vllm/vllm-openai:v0.18.0\n    command:\n"
                                 "      - --model\n      - m\n      - --override-generation-config\n      - '{\"temperature\": 0.7}'\n"}, None),
    ("dockerfile", {"Dockerfile": 'FROM ghcr.io/ggml-org/llama.cpp:server-b7000\nCMD ["-m", "m.gguf", "--temp", "0.9"]\n'}, None),
    ("yaml body", {"request.yaml": "model: gpt-4o # the model\nmessages: []\ntemperature: 0.7 # warm\n"}, None),
)  # fmt: skip


def sampling(texts: dict[str, str], surface: str | None) -> list[str]:
    result = audit_files({k: v.encode() for k, v in texts.items()}, surface=surface)
    return [f"{f.subject}: {f.summary}" for f in result.findings if f.kind == "sampling_still_on"]


@pytest.mark.parametrize(("name", "texts", "surface"), FIXABLE, ids=[f[0] for f in FIXABLE])
def test_the_fixed_files_no_longer_sample(
    name: str, texts: dict[str, str], surface: str | None
) -> None:
    fixed = fix_files(texts, surface=surface)
    assert sampling(fixed.texts, surface) == [] and fixed.left == []
    assert fixed.changes
    errors = {f.kind for f in audit_files({k: v.encode() for k, v in fixed.texts.items()}, surface=surface).findings}
    assert "unsupported_error" not in errors


@pytest.mark.parametrize("model", ["llama-3.1-8b-instant", "MiniMax-M2"])
def test_an_api_that_cannot_be_greedy_says_so(model: str) -> None:
    fixed = fix_files({"request.json": json.dumps({"model": model, "messages": []})})
    assert fixed.left and "cannot be made greedy" in str(fixed.left[0].remedy)


def test_a_clean_file_stays_as_it_is() -> None:
    text = '{"model":"m",  "messages":[],\n"temperature":0 }'
    fixed = fix_files({"request.json": text}, surface="vllm.openai_request")
    assert fixed.texts["request.json"] == text and fixed.changes == []


def test_a_launch_line_changes_only_what_it_must() -> None:
    text = "# keep me\nexec llama-server -m m.gguf \\\n  --temp 0.7 --port 8080  # warm\n"
    fixed = fix_files({"run.sh": text})
    assert fixed.texts["run.sh"] == text.replace("--temp 0.7", "--temp 0")
    assert len(fixed.changes) == 1


def test_comments_and_order_of_yaml_stay() -> None:
    text = dict(FIXABLE[-3][1])["compose.yaml"]
    fixed = fix_files({"compose.yaml": text}).texts["compose.yaml"]
    assert fixed == text.replace('{"temperature": 0.7}', '{"temperature": 0}')


def test_hardening_sets_the_switch_and_tells_the_cost() -> None:
    fixed = fix_files({"run.sh": "docker run -p 1:1 vllm/vllm-openai:v0.18.0 --model m\n"}, harden=True)
    line = fixed.texts["run.sh"]
    assert line.startswith("docker run -e VLLM_BATCH_INVARIANT=1 -p 1:1 vllm/vllm-openai:v0.18.0 --model m")
    assert any("cost: slower kernels" in change for change in fixed.changes)
    kinds = {f.kind for f in audit_files({"run.sh": line.encode()}).findings}
    assert kinds <= {"ok"}


@pytest.mark.parametrize("name", ["vllm", "sglang", "llama"])
def test_hardened_lines_are_clean_of_batch_findings(name: str) -> None:
    line = {
        "vllm": "vllm serve m --tensor-parallel-size 2 --enable-prefix-caching",
        "sglang": "sglang serve --model-path m --tp-size 2",
        "llama": "llama-server -m m.gguf -np 4",
    }[name]
    fixed = fix_files({"run.sh": line}, harden=True, engine_version=None if name != "vllm" else "0.18.0")
    version = "0.18.0" if name == "vllm" else None
    found = audit_files({"run.sh": fixed.texts["run.sh"].encode()}, engine_version=version).findings
    assert [f.subject for f in found if f.kind == "breaks_batch_invariance"] == []
    assert shlex.split(fixed.texts["run.sh"])


DOCS: tuple[str, ...] = (
    '{"a": 1, "b": {"c": [1, 2]}, "d": null}', '{\n  "a": 1,\n  "b": {\n    "c": 2\n  }\n}', "{}", '{"b":{}}', '{ "a" : 1 }',
)  # fmt: skip


@pytest.mark.parametrize("text", DOCS)
@pytest.mark.parametrize("path", [("a",), ("b",), ("b", "c"), ("new",), ("b", "new"), ("x", "y")])
@pytest.mark.parametrize("value", [0, False, "t", {"k": [1]}])
def test_json_edits_do_what_the_plain_value_says(text: str, path: tuple[str, ...], value: Any) -> None:
    plain = json.loads(text)
    node = plain
    for step in path[:-1]:
        if not isinstance(node.get(step), dict):
            node[step] = {}
        node = node[step]
    node[path[-1]] = value
    assert json.loads(set_value(text, path, value)) == plain


@pytest.mark.parametrize("text", DOCS)
@pytest.mark.parametrize("path", [("a",), ("b",), ("b", "c"), ("d",), ("none",)])
def test_json_removal_does_what_the_plain_value_says(text: str, path: tuple[str, ...]) -> None:
    plain = json.loads(text)
    node = plain
    for step in path[:-1]:
        node = node.get(step, {})
    node.pop(path[-1], None)
    assert json.loads(remove(text, path)) == plain
