"""The command: exit codes, output formats with real places, folders, speed and imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest


def run(*args: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "detdiag", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, check=False)


@pytest.fixture
def warm(tmp_path: Path) -> Path:
    path = tmp_path / "request.json"
    path.write_text('{\n  "model": "gpt-4o",\n  "messages": [],\n  "temperature": 0.7\n}\n')
    return path


@pytest.fixture
def calm(tmp_path: Path) -> Path:
    path = tmp_path / "calm.json"
    path.write_text('{"model": "gpt-4o-2024-08-06", "messages": [], "temperature": 0}')
    return path


def test_exit_codes_follow_the_threshold(warm: Path, calm: Path, tmp_path: Path) -> None:
    line = tmp_path / "server_args.txt"
    line.write_text("vllm serve m\n")
    assert run("audit", warm).returncode == 1
    assert run("audit", warm, "--fail-on", "never").returncode == 0
    assert run("audit", calm).returncode == 0
    assert run("audit", calm, "--fail-on", "low").returncode == 1
    assert run("audit", line).returncode == 0
    assert run("audit", line, "--fail-on", "medium").returncode == 1


def test_bad_usage_is_one_line_and_exit_2(tmp_path: Path, calm: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{\n"a": ')
    prose = tmp_path / "notes.md"
    prose.write_text("nothing here\n")
    for args, words in (
        ((tmp_path / "none.json",), "no such file"),
        ((broken,), "broken.json:2:"),
        ((prose,), "holds no request"),
        ((calm, "--surface", "vllm.openai_reqest"), "did you mean vllm.openai_request"),
        ((calm, "--engine-version", "latest"), "cannot read a version"),
        ((calm, "--fail-on", "hihg"), "unknown severity"),
        ((calm, "-o", "report.docx"), "extension"),
    ):
        done = run("audit", *args)
        assert done.returncode == 2, args
        assert words in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_an_ambiguous_body_is_asked_about_with_the_candidates(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text('{"model": "m", "messages": [], "temperature": 0.7}')
    done = run("audit", path)
    assert done.returncode == 2
    assert "--surface" in done.stderr and "vllm.openai_request" in done.stderr
    assert run("audit", path, "--surface", "vllm.openai_request").returncode == 1


def test_the_json_report_carries_kind_subject_and_table(warm: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = run("audit", warm, "-o", out)
    report = json.loads(out.read_text())
    config = next(layer for layer in report["layers"] if layer["layer"] == "config")
    found = [(f["kind"], f["subject"], f["outcome"], f["severity"]) for f in config["findings"]]
    assert ("sampling_still_on", "temperature", "failed", "high") in found
    assert report["schema"] == "detdiag.report/1"
    assert report["verdict"]["layer"] == "config"
    rows = report["data"]["effective_params"]
    assert {"surface", "parameter", "value", "origin", "ignored"} <= set(rows[0])
    assert done.stderr.strip().endswith("at or above high: 1.")


def test_sarif_points_at_the_line(warm: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.sarif"
    run("audit", "request.json", "-o", out, cwd=warm.parent)
    results = json.loads(out.read_text())["runs"][0]["results"]
    places = [r["locations"][0]["physicalLocation"] for r in results]
    assert places
    for place in places:
        assert place["artifactLocation"]["uri"] == "request.json"
    assert 4 in {place["region"]["startLine"] for place in places}


def repository(root: Path, extra: int = 0) -> None:
    (root / "deploy").mkdir(parents=True)
    (root / "node_modules").mkdir()
    (root / "node_modules" / "request.json").write_text('{"model": "gpt-4o", "messages": []}')
    (root / "deploy" / "compose.yaml").write_text(
        "services:\n  llm:\n    image: vllm/vllm-openai:v0.18.0\n"
        "    command: --model m --enable-lora\n"
    )
    (root / "deploy" / ".env").write_text("VLLM_BATCH_INVARIANT=1\n")
    (root / "run.sh").write_text("#!/bin/sh\nllama-server -m x --temp 0.8\n")
    (root / "package.json").write_text('{"name": "x", "scripts": {"a": "b"}}')
    (root / "broken.yaml").write_text("temperature: [1\n")
    (root / "model").mkdir()
    (root / "model" / "generation_config.json").write_text('{"do_sample": true, "eos_token_id": 2}')
    for index in range(extra):
        folder = root / f"part{index % 20}"
        folder.mkdir(exist_ok=True)
        body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "x" * 200}]}
        (folder / f"request_{index}.json").write_text(json.dumps({**body, "temperature": 0}))


def test_a_repository_is_walked(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    repository(root)
    out = tmp_path / "out.json"
    done = run("audit", root, "-o", out)
    layers = json.loads(out.read_text())["layers"]
    findings = next(layer for layer in layers if layer["layer"] == "config")["findings"]
    found = {
        (f["subject"], Path(f["where"].split(":")[0]).name) for f in findings if f["kind"] != "ok"
    }
    assert ("--temp", "run.sh") in found
    assert ("do_sample", "generation_config.json") in found
    assert ("--enable-lora", "compose.yaml") not in found  # the env file beside it sets the switch
    assert not any(name == "request.json" for _, name in found)
    assert "broken.yaml" in done.stderr and done.returncode == 1


def test_a_thousand_files_in_seconds(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    repository(root, extra=1000)
    from detdiag.audit.walk import audit_folder

    began = time.process_time()
    walked = audit_folder(root)
    assert walked.files >= 1000
    assert time.process_time() - began < 5


def test_fix_writes_and_tells_the_price(warm: Path, tmp_path: Path) -> None:
    out = tmp_path / "fixed.json"
    done = run("audit", warm, "--fix", out)
    assert json.loads(out.read_text())["temperature"] == 0
    assert "cost: less varied text" in done.stderr
    assert run("audit", out).returncode == 0


def test_the_command_stays_light(warm: Path) -> None:
    code = (
        "import sys\nfrom detdiag.cli import main\nsys.argv = ['detdiag', 'audit', sys.argv[1]]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'pandas', 'scipy', 'yaml', 'jinja2', 'plotly'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(warm)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith("[]")


def test_hostile_names_stay_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    body = {
        "model": "gpt-4o\u202e\x1b[31m",
        "messages": [],
        "temperature": 0.7,
        "top_k": "\x1b]0;x",
    }
    path.write_text(json.dumps(body))
    done = run("audit", path, "--surface", "openai.chat")
    assert "\x1b" not in done.stdout + done.stderr and "\u202e" not in done.stdout + done.stderr


def test_explain_prints_rules_and_suggests(tmp_path: Path) -> None:
    config = run("explain", "vllm-002")
    assert "surface:   vllm.sampling_params" in config.stdout and "source:" in config.stdout
    verdict = run("explain", "batch.size-sensitive")
    assert "remedy:" in verdict.stdout and "cost:" in verdict.stdout
    unknown = run("explain", "vllm-2")
    assert unknown.returncode == 2 and "did you mean vllm-002" in unknown.stderr
    listing = run("explain", "--list")
    assert listing.stdout.count("\n") > 280


def test_chinese_lines_stand_in_columns(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [], "temperature": 0.7, "extra_body": {"top_k": 20}}
    (tmp_path / "request.json").write_text(json.dumps(body))
    (tmp_path / "run.sh").write_text("vllm serve m --enable-prefix-caching\n")
    files = ["request.json", "run.sh", "-o", "a.md", "-o", "a.sarif"]
    done = run("audit", *files, "--lang", "zh", cwd=tmp_path)
    assert done.returncode == 1 and "已审查 2 个文件" in done.stderr
    assert "请求本身要求采样 [gen-010]" in done.stdout and "把 top_k 移到请求体顶层" in done.stdout
    table = [line for line in done.stdout.splitlines() if line.startswith("  ")]
    rows = [line for line in table if "vllm.openai_request" in line]
    places = {
        _column(line, word) for line in rows for word in ("请求", "vLLM 默认值") if word in line
    }
    assert len(rows) > 5 and {_column(table[-len(rows) - 1], "来源")} <= places
    report = (tmp_path / "a.md").read_text("utf-8")
    assert "请求本身要求采样" in report and "请求" in report
    assert "the request itself asks for sampling" in (tmp_path / "a.sarif").read_text("utf-8")
    told = run("explain", "gen-010", "--lang", "zh")
    assert told.stdout.startswith("gen-010: 请求本身要求采样\n接口:      any.request\n")
    assert run("audit", "request.json", "--lang", "fr", cwd=tmp_path).returncode == 2


def _column(line: str, word: str) -> int:
    """Where ``word`` stands in a terminal, where Chinese takes two columns a character."""
    return sum(2 if char > "\u2e80" else 1 for char in line.partition(word)[0])
