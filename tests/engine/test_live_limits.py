"""What a live run could not have met is said: contexts longer than those it tried."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_report_says_how_long_the_contexts_were(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from detdiag.demo import demo_path

    folder, prompt = demo_path("dense"), "the keeper wrote in the log that the storm came at night"
    subprocess.run(
        [sys.executable, "-m", "detdiag", "run", "--model", folder, "--prompt", prompt, "--prompt",
         "the storm", "--only", "config,input", "--budget", "20s", "--max-new-tokens", "5",
         "-o", tmp_path / "x.json"], capture_output=True, check=False,
    )  # fmt: skip
    limits = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["method"]["limits"]
    tokens = len(AutoTokenizer.from_pretrained(folder)(prompt)["input_ids"])
    assert f"prompts of up to {tokens} tokens and 5 generated ones were tried" in limits[0]
