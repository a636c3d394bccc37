from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from models import tensors, write_model

NO_TORCH = """
import sys
sys.argv = ["detdiag", *sys.argv[1:]]
from detdiag.cli import main
code = None
try:
    main()
except SystemExit as error:
    code = error.code
bad = {"torch", "transformers", "pandas", "plotly"} & set(sys.modules)
assert not bad, bad
sys.exit(code)
"""


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", NO_TORCH, *map(str, args)], capture_output=True, text=True
    )


def test_take_and_compare(tmp_path: Path) -> None:
    a = write_model(tmp_path / "a")
    weights = tensors()
    name = "model.layers.2.v.weight"
    weights[name][0, 0] = np.nextafter(weights[name][0, 0], np.float32(9))
    b = write_model(tmp_path / "b", weights)
    for folder in (a, b):
        done = run("fingerprint", "--model", folder, "-o", tmp_path / f"{folder.name}.json")
        assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "a.json").read_text())
    assert facts["schema"] == "detdiag.fingerprint/1" and facts["weights"]["count"] == 10
    done = run("fingerprint", tmp_path / "a.json", tmp_path / "b.json")
    assert done.returncode == 1
    assert f"1 tensor of 10 changed ({name})" in done.stdout and "[high]" in done.stdout
    done = run("fingerprint", a, b)
    assert "1 element differs by one ULP" in done.stdout
    done = run("fingerprint", a, tmp_path / "a.json", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["fingerprint_diff"] == []


def test_the_machine_alone_and_no_private_names() -> None:
    import getpass
    import socket

    done = run("fingerprint")
    facts = json.loads(done.stdout)
    assert {"python", "library_versions", "cpu", "threads", "platform"} <= facts.keys()
    strings = json.dumps(facts)
    assert f'"{socket.gethostname()}"' not in strings and f'"{getpass.getuser()}"' not in strings
    assert "GPU-" not in strings


def test_groups(tmp_path: Path) -> None:
    folders = [write_model(tmp_path / name) for name in ("r1", "r2")]
    folders.append(write_model(tmp_path / "r3", shards=2))
    weights = tensors()
    weights["model.norm.weight"] = weights["model.norm.weight"] + 1
    folders.append(write_model(tmp_path / "r4", weights))
    args = [part for folder in folders for part in ("--model", folder)]
    done = run("fingerprint", *args)
    assert done.returncode == 1, done.stderr
    assert "group A: r1, r2, r3" in done.stdout and "group B: r4" in done.stdout
    done = run("fingerprint", *args[:6], "--json")
    assert done.returncode == 0 and len(json.loads(done.stdout)["groups"]) == 1


@pytest.mark.parametrize("bad", ["cut", "missing", "empty", "text", "list", "latin"])
def test_bad_input_is_one_line(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "model.safetensors"
    write_model(tmp_path)
    other = tmp_path / "x.json"
    if bad == "cut":
        path.write_bytes(path.read_bytes()[:-3])
        done = run("fingerprint", "--model", tmp_path)
        assert "model.safetensors" in done.stderr and "tensor '" in done.stderr
    elif bad == "missing":
        done = run("fingerprint", "--model", tmp_path / "none")
    elif bad == "empty":
        (tmp_path / "nothing").mkdir()
        done = run("fingerprint", "--model", tmp_path / "nothing")
        assert "no model in this directory" in done.stderr
    else:
        content = {"text": b"{", "list": b"[1]", "latin": b'{"a": "\xe9"}'}[bad]
        other.write_bytes(content)
        done = run("fingerprint", other, other)
        assert "x.json" in done.stderr
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr


def test_history_names_the_change_point(tmp_path: Path) -> None:
    log = tmp_path / "log.ndjson"
    assert run("fingerprint", "--history", log).returncode == 2
    same = write_model(tmp_path / "same")
    weights = tensors()
    weights["model.norm.weight"] = weights["model.norm.weight"] + 1
    other = write_model(tmp_path / "other", weights)
    codes = [run("fingerprint", "--history", log, f).returncode for f in (same, same, other, other)]
    assert codes == [0, 0, 1, 0]
    done = run("fingerprint", "--history", log, "--json")
    found = json.loads(done.stdout)
    assert found["entries"] == 4 and len(found["changes"]) == 1
    (row,) = found["changes"][0]["rows"]
    assert row["field"] == "weights_digest" and "1 tensor of 10" in row["text"]
    log.write_bytes(log.read_bytes()[:-20])
    assert json.loads(run("fingerprint", "--history", log, "--json").stdout)["entries"] == 3


def test_env_in_text_and_json() -> None:
    done = run("env")
    assert done.returncode == 0 and "recorded evidence" in done.stdout
    found = json.loads(run("env", "--json").stdout)
    assert [row["layer"] for row in found["layers"]][0] == "config"
    assert all(row["recorded"]["can_run"] for row in found["layers"])
    assert all(item["enable"] for item in found["missing"])


def test_env_asks_torch_in_a_child() -> None:
    import torch

    found = json.loads(run("env", "--json", "--torch").stdout)
    assert found["torch"]["version"] == torch.__version__
    assert found["torch"]["cuda"] == torch.cuda.is_available()
