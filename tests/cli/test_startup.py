"""What must stay light: no torch where no model is run, and a quick ``--help``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures"
CASE = FIXTURES / "cases" / "batch-size-in-16-bit"
PROBE = """
import json, sys
sys.argv = ["detdiag", *json.loads(sys.argv[1])]
from detdiag.cli import main
try:
    main()
except SystemExit as stop:
    code = stop.code
heavy = [m for m in ("torch", "transformers") if m in sys.modules]
print("\\n" + json.dumps({"code": code, "heavy": heavy}))
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["run", "--help"], 0),
        (["run", "--case", str(CASE), "--quiet"], 1),
        (["audit", str(CASE / "request.json"), "--quiet"], 0),
        (["diff", str(CASE / "request.json"), str(CASE / "request.json")], 0),
        (["explain", "batch.size-sensitive"], 0),
        (["env"], 0),
    ],
    ids=lambda a: " ".join(Path(x).name for x in a) if isinstance(a, list) else str(a),
)
def test_no_torch(arguments: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(arguments)], capture_output=True, text=True
    )
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen == {"code": code, "heavy": []}, done.stderr


def test_import_is_light() -> None:
    program = "import detdiag, sys; print([m for m in sys.modules if m in ('torch', 'pandas')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_help_does_not_import_pandas_or_rich() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "detdiag", "--help"],
        capture_output=True,
        text=True,
    )
    modules = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert not modules & {"pandas", "scipy", "plotly", "jinja2", "httpx", "yaml"}


def test_audit_imports_only_what_it_uses() -> None:
    """One file is audited in 0.4 s, start to finish; each of these costs too much of it."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "detdiag", "audit", str(CASE / "request.json")],
        capture_output=True,
        text=True,
    )
    modules = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "detdiag.audit.deployment" in modules
    heavy = {"pandas", "scipy", "plotly", "jinja2", "httpx", "pydantic", "rich", "numpy"}
    assert not modules & heavy
    assert "detdiag.commands.run" not in modules
