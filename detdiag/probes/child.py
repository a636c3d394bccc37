"""Run the same forward in a fresh process: ``python -m detdiag.probes.child`` reads one job.

The job is a JSON object on standard input: ``load`` (arguments of ``load_local``), ``rows``,
``start``, ``times``, ``threads`` and ``logits`` (a file to write the first run's logits to). The
answer is one JSON object on the last line of standard output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ChildResult:
    """What another process computed; ``error`` is its last line when it failed."""

    digests: tuple[tuple[str, ...], ...] = ()
    logits: Tensor | None = None
    wall_s: float = 0.0
    error: str | None = None


def run_child(
    load: Mapping[str, Any],
    rows: Sequence[Sequence[int]],
    start: int,
    *,
    times: int = 2,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> ChildResult:
    """Load the model in a fresh process with ``env`` set and forward ``rows`` there."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="detdiag-") as folder:
        out = Path(folder) / "logits.pt"
        job = {
            "load": dict(load),
            "rows": [list(r) for r in rows],
            "start": start,
            "times": times,
            "threads": torch.get_num_threads(),
            "logits": str(out),
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", "detdiag.probes.child"],
                input=json.dumps(job),
                capture_output=True,
                text=True,
                timeout=max(timeout_s, 1.0),
                env={**os.environ, **(env or {})},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return ChildResult(error=f"no answer in {timeout_s:.0f} s")
        if done.returncode != 0 or not out.exists():
            lines = done.stderr.strip().splitlines()
            return ChildResult(error=lines[-1][:200] if lines else f"exit {done.returncode}")
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        logits = torch.load(out, weights_only=True)
    return ChildResult(tuple(tuple(d) for d in answer["digests"]), logits, time.monotonic() - began)


def main() -> None:
    """Answer one job."""
    from detdiag.probes.runs import run_padded
    from detdiag.targets.local import load_local

    job = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    target = load_local(**job["load"], prompts=())
    batch = target.pad(job["rows"])
    runs = [run_padded(target, batch, job["start"])[0] for _ in range(job["times"])]
    torch.save(runs[0].logits, job["logits"])
    print(json.dumps({"digests": [list(run.digests) for run in runs]}))


if __name__ == "__main__":
    main()
