"""With ``--redact`` no file of a live run keeps a prompt, the record included."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

SECRET = "Zanzibarquokka weighs eleven stones"


def detdiag(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detdiag", *map(str, arguments)], capture_output=True, text=True
    )


@pytest.mark.parametrize("named", [False, True], ids=["beside", "asked for"])
def test_the_record_of_a_live_run_is_redacted_too(tmp_path: Path, named: bool) -> None:
    from detdiag.demo import demo_path

    outputs = ["-o", tmp_path / "x.json", *(["-o", tmp_path / "x.ndjson"] if named else [])]
    done = detdiag(
        "run", "--model", demo_path("dense"), "--prompt", SECRET, "--only", "config,input",
        "--budget", "20s", "--max-new-tokens", 4, "--redact", "all", *outputs,
    )  # fmt: skip
    assert done.returncode in (0, 1, 4), done.stderr
    assert (tmp_path / "x.ndjson").is_file()
    for path in tmp_path.iterdir():
        assert SECRET not in path.read_text(encoding="utf-8"), path.name
        assert "Zanzibarquokka" not in path.read_text(encoding="utf-8"), path.name
    assert SECRET not in done.stdout + done.stderr
    report = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256((tmp_path / "x.ndjson").read_bytes()).hexdigest()
    assert report["data"]["reproduce"]["record_sha256"] == digest


def test_without_it_the_record_keeps_what_was_asked(tmp_path: Path) -> None:
    from detdiag.demo import demo_path

    detdiag(
        "run", "--model", demo_path("dense"), "--prompt", SECRET, "--only", "config,input",
        "--budget", "20s", "--max-new-tokens", 4, "-o", tmp_path / "x.ndjson",
    )  # fmt: skip
    assert "Zanzibarquokka" in (tmp_path / "x.ndjson").read_text(encoding="utf-8")
