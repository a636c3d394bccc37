"""A model named by its hub id is fingerprinted where the hub's cache keeps it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from detdiag.demo import demo_path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cache_of(tmp_path: Path) -> Path:
    """The cache's own layout: blobs, and a snapshot of links to them under a commit."""
    home = tmp_path / "hub" / "models--org--tiny"
    for part in ("blobs", "refs", f"snapshots/{COMMIT}"):
        (home / part).mkdir(parents=True)
    (home / "refs" / "main").write_text(COMMIT)
    for file in Path(demo_path("dense")).iterdir():
        blob = home / "blobs" / file.name
        blob.write_bytes(file.read_bytes())
        (home / "snapshots" / COMMIT / file.name).symlink_to(f"../../blobs/{file.name}")
    return tmp_path / "hub"


def fingerprint(name: str, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "detdiag", "fingerprint", "--model", name],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"},
    )


def test_hub_id_and_folder_have_one_weights_digest(tmp_path: Path) -> None:
    cache = cache_of(tmp_path)
    by_id = json.loads(fingerprint("org/tiny", cache).stdout)
    by_folder = json.loads(fingerprint(str(demo_path("dense")), cache).stdout)
    assert by_id["weights_digest"] == by_folder["weights_digest"]
    assert by_id["tokenizer_digest"] == by_folder["tokenizer_digest"]


def test_what_is_not_cached_is_one_clear_line(tmp_path: Path) -> None:
    done = fingerprint("org/absent", cache_of(tmp_path))
    assert done.returncode == 2
    assert "org/absent" in done.stderr and len(done.stderr.splitlines()) == 1
