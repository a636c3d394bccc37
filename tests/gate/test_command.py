"""``detdiag check`` as CI calls it: exit codes, streams, GitHub's files, no torch for files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from detdiag.demo import demo_path
from detdiag.fingerprint import fingerprint_model
from tests.gate.build import ROOT

GREEDY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}


def check(cwd: Path, *arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GITHUB_", "DETDIAG_"))}
    return subprocess.run(
        [sys.executable, "-m", "detdiag", "check", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**clean, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **env},
    )


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "request.json").write_text(json.dumps(GREEDY))
    config = {"do_sample": True, "temperature": 0.8, "top_p": 0.9}
    (tmp_path / "generation_config.json").write_text(json.dumps(config, indent=1))
    return tmp_path


def last(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.strip().splitlines()[-1]


def test_go_no_go_and_the_waiver_between_them(work: Path) -> None:
    done = check(work, "request.json", "--quiet")
    assert done.returncode == 0 and last(done).startswith("GO: "), done.stderr
    assert done.stdout == ""
    done = check(work, "generation_config.json", "-o", "r.sarif", "-o", "r.json")
    assert done.returncode == 1 and last(done).startswith("NO-GO: config."), done.stderr
    result = json.loads((work / "r.sarif").read_text())["runs"][0]["results"][0]
    at = result["locations"][0]["physicalLocation"]
    assert at["artifactLocation"]["uri"] == "generation_config.json"
    line = (work / "generation_config.json").read_text().split("\n")[at["region"]["startLine"] - 1]
    assert "do_sample" in line or "temperature" in line
    rule = json.loads((work / "r.json").read_text())["gate"]["items"][0]["rule"]
    waiver = f'[[waiver]]\nrule = "{rule}"\nreason = "by design"\nowner = "ops"\nexpires = {{}}\n'
    (work / "detdiag.toml").write_text(waiver.format("2999-01-01"))
    done = check(work, "generation_config.json")
    assert done.returncode == 0 and "by design (owner ops, until 2999-01-01)" in done.stderr
    (work / "detdiag.toml").write_text(waiver.format("2020-01-01"))
    done = check(work, "generation_config.json")
    assert done.returncode == 1 and "expired" in done.stderr


def test_a_signed_off_model_and_one_that_changed(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    model = Path(shutil.copytree(demo_path("dense"), tmp_path / "model"))
    (tmp_path / "ok.json").write_text(json.dumps(fingerprint_model(model)))
    (tmp_path / "detdiag.toml").write_text('model = "model"\nbaseline = "ok.json"\n')
    done = check(tmp_path, "--profile", "quick")
    assert done.returncode == 0, done.stderr
    assert "passed: config, input, version" in last(done)
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|end|>", "<|END|>"))
    done = check(tmp_path, "--profile", "quick")
    assert done.returncode == 1 and "version.template-changed" in last(done), done.stderr
    template.write_text("{{ strftime_now('%H:%M') }}" + template.read_text())
    done = check(tmp_path, "--profile", "quick")
    assert "input.template-reads-clock" in last(done)
    missing = check(tmp_path, "--profile", "quick", "--baseline", "nowhere.json")
    assert missing.returncode == 2 and "nowhere.json" in last(missing)


def test_a_sampling_model_is_judged_by_the_call_that_is_made(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    model = Path(shutil.copytree(demo_path("dense"), tmp_path / "model"))
    (model / "generation_config.json").write_text('{\n "do_sample": true, "temperature": 0.7\n}')
    done = check(tmp_path, "--model", "model", "--profile", "quick")
    assert done.returncode == 1 and "[model/generation_config.json:2]" in last(done), done.stderr
    (tmp_path / "kwargs.json").write_text('{"do_sample": false}')
    (tmp_path / "detdiag.toml").write_text('generate-kwargs = "kwargs.json"\n')
    done = check(tmp_path, "--model", "model", "--profile", "quick")
    assert done.returncode == 0, done.stderr
    (tmp_path / "detdiag.toml").write_text('generate-kwargs = "none.json"\n')
    done = check(tmp_path, "--model", "model", "--profile", "quick")
    assert done.returncode == 2 and "none.json" in done.stderr


def test_paths_of_the_settings_file_are_places_in_the_repository(work: Path) -> None:
    (work / "serve").mkdir()
    (work / "generation_config.json").rename(work / "serve" / "generation_config.json")
    (work / "detdiag.toml").write_text('paths = ["serve"]\n')
    done = check(work, "-o", "r.sarif")
    assert done.returncode == 1, done.stderr
    result = json.loads((work / "r.sarif").read_text())["runs"][0]["results"][0]
    place = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert place == "serve/generation_config.json"


def test_quick_imports_no_torch(work: Path) -> None:
    program = (
        "import sys\nsys.argv = ['detdiag', 'check', 'request.json']\n"
        "from detdiag.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "print([m for m in ('torch', 'transformers', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=work,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to check"),
        (["nowhere.json"], "no such file"),
        (["--profile", "fast"], "expected quick, pr or release"),
        (["--profile", "releas"], "did you mean 'release'?"),
        (["--profile", "pr"], "needs a target"),
        (["--profile", "quick", "--demo"], "files and model folders only"),
        (["--model", "m", "--demo"], "name one target"),
        (["--endpoint", "http://x"], "--model-name"),
        (["request.json", "--bound", "3"], "--bound: expected a number between 0 and 1"),
        (["--demo", "--runs", "5"], "cannot exclude"),
        (["request.json", "-o", "x.docx"], "extension"),
        (["request.json", "--config", "no.toml"], "no such settings file"),
        (["--demo-fault", "rase"], "did you mean 'race"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(work: Path, arguments: list[str], message: str) -> None:
    done = check(work, *arguments)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_a_mistake_in_the_file_names_its_line(work: Path) -> None:
    (work / "detdiag.toml").write_text('profile = "quick"\n\nfail-onn = "text"\n')
    done = check(work, "request.json")
    assert done.returncode == 2
    assert done.stderr.strip().endswith("unknown key 'fail-onn'; did you mean 'fail-on'?")
    assert "detdiag.toml:3:" in done.stderr


def test_print_config_says_where_every_value_comes_from(work: Path) -> None:
    (work / "detdiag.toml").write_text('profile = "release"\nbound = 0.1\n')
    done = check(work, "--print-config", "--fail-on", "text", "--model", "m")
    assert done.returncode == 0 and done.stderr == ""
    rows = {line.split(" = ")[0]: line for line in done.stdout.splitlines() if " = " in line}
    assert rows["fail-on"].endswith("# --fail-on") and rows["bound"].endswith("# detdiag.toml:2")
    assert rows["budget"].endswith("# default of release")
    assert "29" in rows["runs"]  # ln 0.05 / ln 0.9 = 28.4
    shown = json.loads(check(work, "--print-config", "--json").stdout)
    assert shown["settings"]["bound"] == {"value": 0.1, "origin": "detdiag.toml:2"}


def test_github_gets_one_annotation_and_a_summary(work: Path) -> None:
    summary = work / "summary.md"
    summary.write_text("before\n")
    env = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    done = check(work, "generation_config.json", **env)
    assert done.returncode == 1
    assert done.stdout.startswith("::error file=generation_config.json,line=")
    assert done.stdout.count("::") == 2 and done.stdout.count("\n") == 1
    text = summary.read_text()
    assert text.startswith("before\n") and "**NO-GO**" in text and "| config.sampling" in text
    done = check(work, "generation_config.json", "--json", **env)
    assert json.loads(done.stdout)["gate"]["decision"] == "NO-GO"
    assert done.stderr.startswith("::error file=")
    broken = check(work, "request.json", GITHUB_STEP_SUMMARY=str(work / "no" / "x"))
    assert broken.returncode == 0 and "cannot write the step summary" in broken.stderr


def test_a_recorded_case_is_gated_by_the_same_rules() -> None:
    cases = ROOT / "fixtures" / "cases"
    done = check(ROOT, "--case", cases / "batch-size-in-16-bit", "--profile", "pr")
    assert done.returncode == 1 and last(done).startswith("NO-GO: batch."), done.stderr
    done = check(ROOT, "--case", cases / "clean-sixty-repeats", "--profile", "release")
    assert done.returncode == 4 and last(done).startswith("INCONCLUSIVE: "), done.stderr
