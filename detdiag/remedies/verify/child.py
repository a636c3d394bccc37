"""A fresh process for one remedy: ``python -m detdiag.remedies.verify.child`` reads one job.

The job is a JSON object on standard input; the answer is one JSON object on the last line of
standard output. Environment variables are those that the parent set before the start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

TAIL = 200


def run_child(
    job: Mapping[str, Any], *, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> dict[str, Any]:
    """The child's answer with ``wall_s``; ``{"error": one line}`` where it crashed or ran out of
    time. A child is never waited for longer than ``timeout_s``."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "detdiag.remedies.verify.child"],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=max(timeout_s, 1.0),
            env={**os.environ, **(env or {})},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {timeout_s:.0f} s", "wall_s": time.monotonic() - began}
    wall = time.monotonic() - began
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        try:
            return {**json.loads(lines[-1]), "wall_s": wall}
        except ValueError:
            pass
    return {"error": _last_line(done), "wall_s": wall}


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return f"killed by signal {-done.returncode}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return lines[-1][:TAIL] if lines else f"exit {done.returncode}"


def main() -> None:
    """Answer one job."""
    import torch

    from detdiag.remedies.verify.measure import measure
    from detdiag.targets.local import load_local
    from detdiag.targets.prompts import Prompt

    job = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    prompts = tuple(
        Prompt(p["id"], p["text"], None if p["messages"] is None else tuple(p["messages"]))
        for p in job["questions"]
    )
    target = load_local(
        **job["load"], prompts=prompts, generate_kwargs=job.get("generate_kwargs") or {}
    )
    answer = measure(target, job)
    answer["peak_memory_bytes"] = peak_memory_bytes(target.device)
    print(json.dumps(answer))


def peak_memory_bytes(device: str) -> int:
    """Peak of the accelerator's allocator, else of this process's resident memory."""
    import torch

    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(device))
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    main()
