"""Readers: words as shlex sees them, lines where they are, one clear line on bad input."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detdiag.audit import audit_files, jsontext
from detdiag.audit.launch import find_launch
from detdiag.audit.readers import read_documents
from detdiag.audit.shellwords import parse_commands
from detdiag.errors import DetdiagError

WORDS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1), min_size=1
)


@given(WORDS)
def test_quoted_words_come_back_as_shlex_reads_them(words: list[str]) -> None:
    line = shlex.join(words)
    commands = parse_commands(line)
    assert [[w.text for w in command] for command in commands] == [shlex.split(line)]


@given(
    st.lists(
        st.sampled_from(["a", "'b c'", '"d e"', "f\\ g", '"x\\"y"', "--k=v", "''"]), min_size=1
    )
)
def test_mixed_quoting_agrees_with_shlex(parts: list[str]) -> None:
    line = " ".join(parts)
    assert [w.text for w in parse_commands(line)[0]] == shlex.split(line)


def test_words_know_their_place() -> None:
    text = "# note\nA=1 vllm serve m \\\n  --seed 0 # tail\nls | cat > out 2>&1\n--dtype float32\n"
    commands = parse_commands(text)
    assert [[w.text for w in c] for c in commands] == [
        ["A=1", "vllm", "serve", "m", "--seed", "0"],
        ["ls"],
        ["cat", "--dtype", "float32"],
    ]
    assert [w.line for w in commands[0]] == [2, 2, 2, 2, 3, 3]
    assert all(text[w.start : w.end] == w.text for c in commands for w in c)


@pytest.mark.parametrize(
    ("line", "engine", "version", "flags"),
    [
        (
            "python -m vllm.entrypoints.openai.api_server --model m --seed=3",
            "vllm",
            None,
            {"seed": "3"},
        ),
        ("sudo docker run -e X=1 vllm/vllm-openai:v0.8.1 --seed 1", "vllm", "0.8.1", {"seed": "1"}),
        (
            "docker run lmsysorg/sglang:v0.5.3-cu126 python3 -m sglang.launch_server --tp 2",
            "sglang",
            "0.5.3",
            {"tp-size": "2"},
        ),
        ("bash -c 'vllm serve m --max_model_len 5'", "vllm", None, {"max-model-len": "5"}),
        ("nohup ./llama-server -m x.gguf -np 4 &", "llamacpp", None, {"parallel": "4"}),
        (
            "llama-server --temp -1 --no-cache-prompt",
            "llamacpp",
            None,
            {"temp": "-1", "cache-prompt": False},
        ),
        (
            "docker run ghcr.io/ggml-org/llama.cpp:server-b6927 -m x --no-warmup",
            "llamacpp",
            "b6927",
            {},
        ),
        (
            "vllm serve m -O3 --compilation-config.level 3",
            "vllm",
            None,
            {"optimization-level": "3"},
        ),
        (
            "uv run vllm serve m --trust-remote-code --seed 1",
            "vllm",
            None,
            {"trust-remote-code": True, "seed": "1"},
        ),
        ("transformers serve --port 8000", "hf", None, {"port": "8000"}),
        ("python -m mlc_llm serve m --mode server", "mlc", None, {"mode": "server"}),
        (
            "text-generation-launcher --model-id m --max-batch-size 4",
            "tgi",
            None,
            {"max-batch-size": "4"},
        ),
    ],
)
def test_launch_lines(
    line: str, engine: str, version: str | None, flags: dict[str, object]
) -> None:
    launch = find_launch(parse_commands(line)[0])
    assert launch is not None
    assert (launch.engine, launch.version) == (engine, version)
    assert {k: launch.flags[k].value for k in flags} == flags


def test_other_commands_start_no_server() -> None:
    for line in ("pip install vllm", "ollama pull llama3", "docker run redis:7", "echo serve vllm"):
        assert find_launch(parse_commands(line)[0]) is None


BAD = {
    "truncated.json": (b'{\n "model": "m",\n "temperature": 0', 3),
    "trailing.json": (b'{"a": 1,}', 1),
    "nan.json": (b'{"temperature": NaN}', None),
    "latin.json": (b'{\n"a": "\xe9"}', 2),
    "list.json": (b"[1, 2]", None),
    "deep.json": (b"[" * 100_000, None),
    "bad.yaml": (b"a: [1\nb: 2\n", 2),
    "tabs.yaml": (b"a:\n\t- b\n", 2),
    "loop.yaml": (b"&a [*a]\n", None),
    "server_args.txt": (b"vllm serve m\n--x 'open\n", 2),
    "header.txt": (b"# surface: vllm.engin\nx\n", 1),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_with_its_place(name: str) -> None:
    data, line = BAD[name]
    with pytest.raises(DetdiagError) as raised:
        read_documents(name, data)
    assert "\n" not in str(raised.value) and name in str(raised.value)
    assert line is None or raised.value.line == line


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=8,
        ),
        max_size=4,
    )
)
def test_json_spans_cover_their_values(value: dict[str, object]) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    root = jsontext.scan(text)
    for path, item in jsontext.paths(value):
        node = root.walk(path)
        assert node is not None and json.loads(text[node.start : node.end]) == item


def test_lines_of_findings_in_json_yaml_and_shell(tmp_path: Path) -> None:
    files = {
        "request.json": b'{\n  "model": "gpt-4o",\n  "messages": [],\n  "temperature": 0.7\n}\n',
        "compose.yaml": b"services:\n  a:\n    image: vllm/vllm-openai:v0.18.0\n    command:\n"
        b"      - --model\n      - m\n      - --enable-lora\n",
        "run.sh": b"#!/bin/sh\n\nllama-server -m x \\\n  --temp 0.5\n",
    }
    places = {}
    for name, data in files.items():
        for f in audit_files({name: data}).findings:
            places[(name, f.subject)] = f.where
    assert places[("request.json", "temperature")] == "request.json:4"
    assert places[("compose.yaml", "--enable-lora")] == "compose.yaml:7"
    assert places[("run.sh", "--temp")] == "run.sh:4"


SCRAPS = st.sampled_from(
    [
        "vllm serve m",
        "--seed",
        "-np 4",
        "'",
        '"',
        "\\",
        "$(",
        "{",
        "}",
        "[",
        "- ",
        ": ",
        "\n",
        "#",
        "&a",
        "*a",
        "|",
        ">",
        "temperature",
        "0",
        "1e-8",
        '"temperature": 0',
        "image: vllm/vllm-openai:v1",
        "args:",
        "PARAMETER temperature",
        "FROM x",
        "ENV A=",
        "CMD [",
        "=",
        "\ufeff",
        "\x00",
        "\u202e",
        "null",
        "<<EOF",
        "docker run",
        "messages",
    ]
)
TEXT = st.lists(SCRAPS | st.text(max_size=8), max_size=25).map("".join)
NAMES = (
    "request.json",
    "values.yaml",
    "run.sh",
    "server_args.txt",
    ".env",
    "Dockerfile",
    "Modelfile",
    "generation_config.json",
    "generate_kwargs.json",
    "intent.json",
    "batch.jsonl",
    "notes",
)


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from(NAMES),
    TEXT,
    st.sampled_from([None, "vllm.engine", "openai.chat", "hf.generate_kwargs", "ollama.api"]),
)
def test_no_text_crashes_the_audit(name: str, text: str, surface: str | None) -> None:
    try:
        audit_files({name: text.encode("utf-8", "surrogatepass")}, surface=surface)
    except DetdiagError as error:
        assert "\n" not in str(error)


KEYS = st.sampled_from(
    [
        "model",
        "messages",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "n",
        "options",
        "parameters",
        "inputs",
        "contents",
        "generationConfig",
        "inferenceConfig",
        "sampling_params",
        "samplers",
        "provider",
        "models",
        "thinking",
        "do_sample",
        "generation_config",
        "extra_body",
        "input",
        "prompt",
        "body",
        "url",
        "headers",
        "choices",
        "system_fingerprint",
    ]
) | st.text(max_size=4)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["0", "0.7", "none", "auto"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=12,
)


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(KEYS, JSON, max_size=8), st.sampled_from(NAMES[:1] + NAMES[7:10]))
def test_no_json_body_crashes_the_audit(body: dict[str, object], name: str) -> None:
    try:
        audit_files({name: json.dumps(body, allow_nan=False).encode()})
    except ValueError:
        pass
    except DetdiagError as error:
        assert "\n" not in str(error)
