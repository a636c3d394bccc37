"""What the CI page, the README and the pre-commit file show is valid and does what it says."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from detdiag.demo import demo_path
from detdiag.fingerprint import fingerprint_model
from detdiag.gate.options import BY_KEY
from detdiag.gate.settings import read_file, resolve
from tests.gate.build import ROOT
from tests.gate.test_command import check

pytest_plugins = "pytester"
PAGE = (ROOT / "docs" / "ci.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.M | re.S)


def commands(value: Any) -> list[str]:
    """Every ``detdiag`` command in a workflow."""
    if isinstance(value, dict):
        return [c for item in value.values() for c in commands(item)]
    if isinstance(value, list):
        return [c for item in value for c in commands(item)]
    return [value] if isinstance(value, str) and value.startswith("detdiag ") else []


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout as the page supposes it: a model, its fingerprint and a settings file."""
    (tmp_path / ".git").mkdir()
    shutil.copytree(demo_path("dense"), tmp_path / "model")
    (tmp_path / "signed-off.json").write_text(json.dumps(fingerprint_model(tmp_path / "model")))
    (tmp_path / "detdiag.toml").write_text('model = "model"\nbaseline = "signed-off.json"\n')
    return tmp_path


def test_workflows_are_yaml_and_their_commands_run(repository: Path) -> None:
    found = [yaml.safe_load(text) for text in blocks(PAGE, "yaml") + blocks(README, "yaml")]
    called = [c for document in found for c in commands(document)]
    assert len(called) == 3
    for command in called:
        words = shlex.split(command)
        assert words[:2] == ["detdiag", "check"]
        done = check(repository, *words[2:])
        assert done.returncode == 0, (command, done.stderr)
        for name in [words[i + 1] for i, word in enumerate(words) if word == "-o"]:
            assert (repository / name).stat().st_size >= len("[]\n"), name


def test_the_settings_example_is_read(tmp_path: Path) -> None:
    (example,) = blocks(PAGE, "toml")
    path = tmp_path / "detdiag.toml"
    path.write_text(example)
    settings = resolve({}, read_file(path))
    assert settings.get("profile") == "pr" and settings.get("runs") == 59
    assert len(settings.waivers) == 1 and len(settings.rules.entries) == 3


def test_the_python_example_passes_under_the_plugin(pytester: pytest.Pytester) -> None:
    (example,) = blocks(PAGE, "python")
    local = example.split("\n\n\ndef test_the_server_repeats")[0]
    pytester.makepyfile(f"def generate(prompt):\n    return prompt.upper()\n\n{local}\n")
    done = pytester.runpytest("-p", "no:detdiag", "-p", "detdiag.pytest_plugin", "--strict-markers")
    done.assert_outcomes(passed=2)


def test_hooks_run_as_pre_commit_calls_them(repository: Path) -> None:
    hooks = {hook["id"]: hook for hook in yaml.safe_load(
        (ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))}  # fmt: skip
    assert set(hooks) == {"detdiag-audit", "detdiag-check"}
    used = yaml.safe_load(blocks(PAGE, "yaml")[-1])["repos"][0]["hooks"]
    assert [hook["id"] for hook in used] == list(hooks)
    assert all(hook["language"] == "python" for hook in hooks.values())
    hook = hooks["detdiag-check"]
    words = shlex.split(hook["entry"]) + hook.get("args", [])
    assert not hook["pass_filenames"] and words[:2] == ["detdiag", "check"]
    assert check(repository, *words[2:]).returncode == 0
    for name in ("request.json", "a/request_b.json", "m/generation_config.json", "Modelfile"):
        assert re.search(hooks["detdiag-audit"]["files"], name), name
    for name in ("package.json", "main.py", "tsconfig.json"):
        assert not re.search(hooks["detdiag-audit"]["files"], name), name
    for name in ("detdiag.toml", "model/config.json", "serve/args.sh"):
        assert re.search(hook["files"], name), name


def test_the_audit_hook_runs_on_the_files_that_it_matches(repository: Path) -> None:
    hook = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))[0]
    (repository / "request.json").write_text(
        '{"model": "gpt-4o", "messages": [{"role": "user", "content": "x"}], "temperature": 0}'
    )
    words = [*shlex.split(hook["entry"])[1:], *hook["args"], "request.json"]
    done = subprocess.run(
        [sys.executable, "-m", "detdiag", *words],
        capture_output=True, text=True, cwd=repository, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_setting_of_the_example_exists() -> None:
    (example,) = blocks(PAGE, "toml")
    keys = re.findall(r"^([a-z-]+) =", example.partition("[rules]")[0], re.M)
    assert set(keys) <= set(BY_KEY)
