"""``detdiag run`` as a user calls it: outputs, exit codes, and one line for bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[2] / "fixtures" / "cases"


def detdiag(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detdiag", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"},
    )


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("clean-sixty-repeats", 0),
        ("batch-size-in-16-bit", 1),
        ("inconclusive-gpu-and-tp-together", 4),
    ],
)
def test_exit_codes_and_the_last_line(name: str, code: int, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    done = detdiag("run", "--case", CASES / name, "-o", out)
    assert done.returncode == code, done.stderr
    verdict = json.loads(out.read_text())["verdict"]
    last = " ".join(done.stderr.strip().splitlines()[-1:])
    assert last == verdict["sentence"]
    assert done.stdout == ""


def test_json_on_stdout_is_the_report(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    done = detdiag("run", "--case", CASES / "batch-size-in-16-bit", "--json", "-o", out, "--quiet")
    assert json.loads(done.stdout) == json.loads(out.read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "name exactly one of"),
        (["run", "--case", "/no/such/folder"], "no such folder"),
        (["run", "--case", CASES / "clean-sixty-repeats", "-o", "x.docx"], "extension"),
        (["run", "--model", "m", "--only", "bach"], "did you mean 'batch'"),
        (["run", "--model", "m", "--budget", "soon"], "expected a time"),
        (["run", "--cas", "x"], "--case"),
        (["rn"], "run"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(arguments: list[object], message: str) -> None:
    done = detdiag(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
