from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detdiag", "diff", *map(str, args)], capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("a", "b", "suffix", "code", "words"),
    [
        (b'{"prompt":"p","user":"a"}', b'{"user":"b","prompt":"p"}', "json", 0, "cannot change"),
        (b'{"prompt":"p"}', b'{ "prompt": "p" }', "json", 0, "white space"),
        (b'{"prompt":"p"}', b'{"prompt":"p\\u200b"}', "json", 1, "ZERO WIDTH SPACE"),
        (b'{"temperature":0}', b'{"temperature":1}', "json", 1, "$.temperature (0 against 1)"),
        (b"[2,2,5]", b"[2,5]", "json", 1, "first id 2 twice"),
        (b"[2,5]", b"[2, 5]", "json", 0, "same 2 token ids"),
        (b"x\n", b"x\r\n", "txt", 1, "CARRIAGE RETURN"),
        (b"x", b"x", "txt", 0, "equal to the byte"),
        (b"caf\xe9", b"caf\xc3\xa9", "txt", 2, "Latin-1"),
        (b'{"prompt":', b"{}", "json", 2, "a.json:1: not valid JSON"),
    ],
)
def test_diff(tmp_path: Path, a: bytes, b: bytes, suffix: str, code: int, words: str) -> None:
    left, right = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}"
    left.write_bytes(a)
    right.write_bytes(b)
    done = run(left, right)
    assert done.returncode == code, done.stderr
    assert words in (done.stderr if code == 2 else done.stdout)
    if code == 2:
        assert done.stderr.count("\n") == 1


def test_bad_paths_are_one_line(tmp_path: Path) -> None:
    good = tmp_path / "a.txt"
    good.write_text("x")
    for bad in (tmp_path, tmp_path / "none"):
        done = run(good, bad)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and str(bad) in done.stderr


def test_json_output_and_forced_kind(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"caf\xe9")
    (tmp_path / "b").write_bytes("caf\u00e9".encode())
    done = run(tmp_path / "a", tmp_path / "b", "--kind", "bytes", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["differs"] and found["kind"] == "bytes"
    assert found["input_diff"]["equal_after"] == ["Latin-1 bytes decoded as such"]


def test_terminal_output_is_inert(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\x1b[31m\u202e")
    (tmp_path / "b").write_text("b")
    done = run(tmp_path / "a", tmp_path / "b")
    assert "\x1b" not in done.stdout and "\u202e" not in done.stdout


def test_no_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    code = (
        "import sys; sys.argv=['detdiag','diff',*[sys.argv[1]]*2]\n"
        "from detdiag.cli import main\n"
        "try: main()\nexcept SystemExit as e: assert e.code == 0\n"
        "bad = {'torch','transformers','pandas','plotly'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=True)
