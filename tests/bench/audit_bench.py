"""How long an audit takes: one file as a process, a thousand files in one walk.

Run ``python tests/bench/audit_bench.py``. Budgets: 0.4 s for a file, 5 s for a thousand.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def one_file(path: Path, runs: int = 7) -> float:
    """Median wall seconds of ``detdiag audit FILE`` beyond a bare interpreter start."""
    command = [sys.executable, "-m", "detdiag", "audit", str(path)]
    walls, bare = [], []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        middle = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        bare.append(middle - began)
        walls.append(time.perf_counter() - middle)
    return statistics.median(walls) - statistics.median(bare)


def thousand_files(root: Path) -> float:
    """Wall seconds of one walk over a thousand requests and launch scripts."""
    from detdiag.audit.walk import audit_folder

    for index in range(1000):
        folder = root / f"part{index % 20}"
        folder.mkdir(exist_ok=True)
        if index % 4:
            body = {"model": "gpt-4o", "messages": [], "temperature": index % 3}
            (folder / f"request_{index}.json").write_text(json.dumps(body))
        else:
            text = f"#!/bin/sh\nvllm serve m --port {index} --max-model-len 4096\n"
            (folder / f"run_{index}.sh").write_text(text)
    began = time.perf_counter()
    audit_folder(root)
    return time.perf_counter() - began


def main() -> None:
    """Print both numbers."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "request.json"
        path.write_text('{"model": "gpt-4o", "messages": [], "temperature": 0}')
        print(f"one file: {one_file(path):.3f} s beyond the interpreter's start")
        path.unlink()
        print(f"a thousand files: {thousand_files(Path(name)):.2f} s")


if __name__ == "__main__":
    main()
