"""What only the whole file can tell: overlap, replicas, repeats of a reply, redaction."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detdiag.evidence.adapters import Adapted, read_evidence, why_ignored
from detdiag.evidence.adapters.aliases import merge_aliases, replica_names
from detdiag.evidence.adapters.overlap import peak_overlap
from detdiag.incidents.overlap import overlap_counts


def brute_peak(spans: list[tuple[float, float]], index: int) -> int:
    """Most spans that hold one moment of the span, over every moment that can matter."""
    start, end = spans[index]
    moments = [start] + [s for s, _ in spans if start <= s < end]
    return max(1, *(sum(s <= m < e for s, e in spans) for m in moments))


@pytest.mark.parametrize("seed", range(20))
def test_peak_overlap_against_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    starts = [rng.randrange(20) for _ in range(30)]
    spans = [(float(s), float(s + rng.randrange(6))) for s in starts]
    expected = [brute_peak(spans, i) for i in range(30)]
    assert peak_overlap([("", *s) for s in spans]) == expected
    counts = overlap_counts(
        np.array([s for s, _ in spans]), np.array([e for _, e in spans]), np.zeros(30)
    )
    assert counts.tolist() == expected


def test_overlap_is_counted_per_server_and_only_where_recorded() -> None:
    spans = [("a", 0.0, 5.0), ("b", 0.0, 5.0), ("a", 1.0, 2.0), None]
    assert peak_overlap(spans) == [2, 1, 2, None]


def test_replica_name_is_the_finest_label() -> None:
    rows = [
        {"region": "eu", "id": "m1", "tier": "std"},
        {"region": "eu", "id": "m2", "tier": "std"},
        {"region": "us", "id": "m3", "tier": "std"},
    ]
    assert replica_names(rows) == ["m1", "m2", "m3"]  # the region follows from the id
    independent = [{"server": s, "tier": t} for s in "ab" for t in "xy"]
    assert replica_names(independent) == ["a x", "a y", "b x", "b y"]
    assert replica_names([{}, {}]) == [None, None]


def test_aliases_fold_only_in_bijection() -> None:
    rows: list[dict[str, Any]] = [
        {"replica": "r1", "system_fingerprint": "f1", "model_reported": "m"},
        {"replica": "r2", "system_fingerprint": "f2", "model_reported": "m"},
    ]
    assert merge_aliases(rows) == {"system_fingerprint": "replica"}
    assert rows[0] == {"replica": "r1", "model_reported": "m"}
    rows = [{"replica": r, "system_fingerprint": f} for r, f in ("12", "13", "22")]
    assert merge_aliases(rows) == {}


def chat(text: str, **extra: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}], **extra}


def pair(prompt: str, response: Any, **extra: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"request": {"model": "m", "messages": messages}, "response": response, **extra}


def adapted(tmp_path: Path, rows: list[Any], name: str = "log.jsonl") -> Adapted:
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(row) for row in rows))
    found = read_evidence(path)
    assert found is not None
    return found


def test_a_reply_logged_twice_counts_once(tmp_path: Path) -> None:
    rows = [pair("q", chat("a", id=f"r{i % 3}", created=1700000000)) for i in range(9)]
    found = adapted(tmp_path, rows)
    assert len(found.observations) == 3
    assert found.notes[0].startswith("6 of 9 records left out: same response id")


def test_ids_that_stand_for_several_answers_are_not_believed(tmp_path: Path) -> None:
    rows = [pair("q", chat("ab"[i % 2], id="chatcmpl-1", created=1)) for i in range(6)]
    assert len(adapted(tmp_path, rows).observations) == 6


def test_redacted_and_cut_answers_are_no_evidence(tmp_path: Path) -> None:
    rows = [
        pair("q", chat("redacted-by-litellm")),
        pair("q", chat("long... (litellm_truncated 900 chars)")),
        pair("q", chat("a real answer")),
    ]
    found = adapted(tmp_path, rows)
    assert [o.output.text for o in found.observations] == ["a real answer"]


def test_records_without_a_prompt_are_never_grouped(tmp_path: Path) -> None:
    rows = [{"request": {"model": "m"}, "response": chat(t)} for t in "ab"]
    found = adapted(tmp_path, rows)
    assert len({o.query for o in found.observations}) == 2
    assert "carry no prompt" in found.notes[-1]
    assert "prompt" in found.lacks


def test_bare_replies_are_read_and_not_compared(tmp_path: Path) -> None:
    found = adapted(tmp_path, [chat("a", object="chat.completion"), chat("b")])
    assert found.format == "response bodies without requests"
    assert len({o.query for o in found.observations}) == 2


def test_choices_of_one_call_repeat_one_condition(tmp_path: Path) -> None:
    body = chat("a")
    body["choices"].append({"index": 1, "message": {"content": "b"}})
    found = adapted(tmp_path, [pair("q", body, start_time=100.0)])
    assert [(o.output.text, o.factors["repeat"]) for o in found.observations] == [
        ("a", 0),
        ("b", 1),
    ]
    assert len({o.query for o in found.observations}) == 1


def test_gzip_is_read_through(tmp_path: Path) -> None:
    rows = [pair("q", chat(t)) for t in "ab"]
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps(r) for r in rows).encode()))
    found = read_evidence(path)
    assert found is not None and len(found.observations) == 2


def test_native_lines_with_a_raw_response(tmp_path: Path) -> None:
    body = chat("a", system_fingerprint="fp", usage={"prompt_tokens_details": {"cached_tokens": 4}})
    rows = [{"id": "o1", "query": "q1", "factors": {"batch_size": 2}, "response": body}]
    found = adapted(tmp_path, rows)
    one = found.observations[0]
    assert found.format == "detdiag observations"
    assert one.output.text == "a"
    assert one.factors == {"batch_size": 2, "system_fingerprint": "fp", "cached_tokens": 4}


def har_entry(index: int, connection: int, text: str, overlap: bool) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": "q"}]}
    return {
        "startedDateTime": f"2025-01-01T00:00:{0 if overlap else index:02d}Z",
        "time": 500,
        "connection": str(connection),
        "request": {
            "method": "POST",
            "url": "https://x.test/v1/chat/completions",
            "postData": {"text": json.dumps(body)},
        },
        "response": {"status": 200, "content": {"text": json.dumps(chat(text))}},
    }


@pytest.mark.parametrize(("overlap", "named"), [(False, True), (True, False)])
def test_connections_name_a_replica_only_when_they_are_not_load(
    tmp_path: Path, overlap: bool, named: bool
) -> None:
    entries = [har_entry(i, i % 2, "ab"[i % 2], overlap) for i in range(8)]
    path = tmp_path / "x.har"
    path.write_text(json.dumps({"log": {"entries": entries}}))
    found = read_evidence(path)
    assert found is not None
    assert ("replica" in found.observations[0].factors) == named
    assert ("replica" in found.lacks) == (not named)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "b": [2]}', "JSON, 1 record with fields 'a', 'b'"),
        ('{"a": 1}\n{"a": 2}\n', "JSON lines, 2 records with fields 'a'"),
        ("hello", "text that no format matches"),
        ("", "empty"),
        ("[1, 2]", "JSON with 2 entries that are not objects"),
    ],
)
def test_unknown_files_are_described(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert read_evidence(path) is None
    assert why_ignored(path).startswith(said)
    assert "HAR 1.2" in why_ignored(path)
