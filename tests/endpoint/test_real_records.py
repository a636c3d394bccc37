"""Records of real servers as ``detdiag run --endpoint`` wrote them: what they prove stays named."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from detdiag.evidence.record import read_record
from detdiag.verdict import decide

RECORDS = Path(__file__).parents[2] / "fixtures" / "records"


def report_of(name: str, folder: Path) -> dict[str, Any]:
    plain = folder / "record.ndjson"
    plain.write_bytes(gzip.decompress((RECORDS / f"{name}.ndjson.gz").read_bytes()))
    return decide(read_record(plain)).to_dict()


@pytest.mark.parametrize(
    ("name", "rule", "said"),
    [
        ("vllm-cpu-bf16-load", "batch.load-sensitive", "the ones after it (decode steps) move"),
        ("llama-cpp-python-one-slot", "batch.prefix-reuse", "after another prompt"),
    ],
)
def test_its_cause_is_named(name: str, rule: str, said: str, tmp_path: Path) -> None:
    report = report_of(name, tmp_path)
    verdict = report["verdict"]
    assert (verdict["status"], verdict["rule"]) == ("attributed", rule), verdict["sentence"]
    assert said in verdict["sentence"]
    idle = [c for c in report["data"]["controls"] if c["condition"].get("concurrency") == "1"]
    assert idle and all(c["k"] == 0 for c in idle)
