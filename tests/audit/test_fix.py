"""Corrected files: nothing samples any more, everything else is as it was, and limits are told."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from detdiag.audit import audit_files
from detdiag.audit.edit_json import remove, set_value
from detdiag.audit.fix import fix_files

FIXABLE: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("fixable.yaml").read_text(encoding="utf-8")
)


def sampling(texts: dict[str, str], surface: str | None) -> list[str]:
    result = audit_files({k: v.encode() for k, v in texts.items()}, surface=surface)
    return [f"{f.subject}: {f.summary}" for f in result.findings if f.kind == "sampling_still_on"]


@pytest.mark.parametrize("row", FIXABLE, ids=lambda row: row["name"])
def test_the_fixed_files_no_longer_sample(row: dict[str, Any]) -> None:
    surface = row.get("surface")
    fixed = fix_files(row["files"], surface=surface)
    assert sampling(fixed.texts, surface) == [] and fixed.left == []
    assert fixed.changes
    data = {name: text.encode() for name, text in fixed.texts.items()}
    assert "unsupported_error" not in {f.kind for f in audit_files(data, surface=surface).findings}


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
    text = next(r for r in FIXABLE if r["name"] == "compose")["files"]["compose.yaml"]
    fixed = fix_files({"compose.yaml": text}).texts["compose.yaml"]
    assert fixed == text.replace('{"temperature": 0.7}', '{"temperature": 0}')


def test_hardening_sets_the_switch_and_tells_the_cost() -> None:
    fixed = fix_files(
        {"run.sh": "docker run -p 1:1 vllm/vllm-openai:v0.18.0 --model m\n"}, harden=True
    )
    line = fixed.texts["run.sh"]
    assert line.startswith(
        "docker run -e VLLM_BATCH_INVARIANT=1 -p 1:1 vllm/vllm-openai:v0.18.0 --model m"
    )
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
    fixed = fix_files(
        {"run.sh": line}, harden=True, engine_version=None if name != "vllm" else "0.18.0"
    )
    version = "0.18.0" if name == "vllm" else None
    found = audit_files({"run.sh": fixed.texts["run.sh"].encode()}, engine_version=version).findings
    assert [f.subject for f in found if f.kind == "breaks_batch_invariance"] == []
    assert shlex.split(fixed.texts["run.sh"])


DOCS: tuple[str, ...] = (
    '{"a": 1, "b": {"c": [1, 2]}, "d": null}',
    '{\n  "a": 1,\n  "b": {\n    "c": 2\n  }\n}',
    "{}",
    '{"b":{}}',
    '{ "a" : 1 }',
)


@pytest.mark.parametrize("text", DOCS)
@pytest.mark.parametrize("path", [("a",), ("b",), ("b", "c"), ("new",), ("b", "new"), ("x", "y")])
@pytest.mark.parametrize("value", [0, False, "t", {"k": [1]}])
def test_json_edits_do_what_the_plain_value_says(
    text: str, path: tuple[str, ...], value: Any
) -> None:
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
