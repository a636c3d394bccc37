"""Case folders: bad input is one clear line, unknown files are listed, raw bodies are adapted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detdiag.engine.case_folder import load_case
from detdiag.errors import DetdiagError
from detdiag.verdict import decide


def lines(path: Path, *objects: object) -> None:
    path.write_text("".join(json.dumps(o) + "\n" for o in objects), encoding="utf-8")


def test_missing_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(DetdiagError, match="no such folder"):
        load_case(tmp_path / "none")
    with pytest.raises(DetdiagError, match="no evidence"):
        load_case(tmp_path)
    (tmp_path / "f").write_text("x")
    with pytest.raises(DetdiagError, match="is not a folder"):
        load_case(tmp_path / "f")


def test_truncated_json_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "observations.jsonl").write_text('{"id": "a"}\n{"id": "b", "output"\n')
    with pytest.raises(DetdiagError, match=r"observations\.jsonl:2: expected one JSON object"):
        load_case(tmp_path)


def test_latin_1_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "observations.jsonl").write_bytes(b'{"id": "a"}\n{"id": "\xe9"}\n')
    with pytest.raises(DetdiagError, match=r"observations\.jsonl:2: expected UTF-8"):
        load_case(tmp_path)


def test_unknown_files_are_listed_not_errors(tmp_path: Path) -> None:
    lines(tmp_path / "observations.jsonl", {"id": "a", "output": {"text": "x"}})
    (tmp_path / "notes.docx").write_bytes(b"\x00\x01")
    case = load_case(tmp_path)
    assert any("notes.docx" in entry for entry in case.ignored)
    assert "notes.docx" in json.dumps(decide(case).to_dict())


def test_a_raw_response_is_adapted(tmp_path: Path) -> None:
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "m-2031",
        "system_fingerprint": "fp_1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"},
                     "finish_reason": "stop"}],
    }  # fmt: skip
    lines(tmp_path / "observations.jsonl", {"id": "a", "response": body})
    observation = load_case(tmp_path).observations[0]
    assert observation.output.text == "hi"
    assert observation.factors["system_fingerprint"] == "fp_1"


def test_factor_layers_may_come_with_the_record(tmp_path: Path) -> None:
    rows = [
        {"id": f"{m}{i}", "query": "q", "output": {"text": m}, "factors": {"moon": m, "repeat": i}}
        for m in ("new", "full")
        for i in range(6)
    ]
    lines(tmp_path / "observations.jsonl", {"factor_layers": {"moon": "version"}}, *rows)
    assert decide(load_case(tmp_path)).verdict.layer == "version"
    with pytest.raises(DetdiagError, match="expected one of config"):
        load_case(tmp_path, factor_layers={"moon": "lunar"})


def test_equal_ids_in_one_file_are_told_apart(tmp_path: Path) -> None:
    rows = [{"id": "a", "output": {"text": "x"}, "factors": {"repeat": i}} for i in (0, 1, 2, 1)]
    lines(tmp_path / "observations.jsonl", *rows)
    case = load_case(tmp_path)
    assert [o.id for o in case.observations] == ["a", "a#2", "a#3"]
    assert any("written twice" in note for note in case.ignored)


@pytest.mark.parametrize(("temperature", "layer"), [(0.001, "config"), (0, None)])
def test_a_request_that_its_engine_samples_is_config(
    tmp_path: Path, temperature: float, layer: str | None
) -> None:
    """vLLM lifts 0.001 to 0.01 and draws; at 0 the same varying answers name nobody."""
    request = {"model": "m", "prompt": "p", "temperature": temperature, "max_tokens": 8}
    rows = [
        {"id": f"o{i}", "query": "q", "request": request, "surface": "vllm.openai_request",
         "output": {"text": f"v{i % 3}"}, "factors": {"repeat": i}}
        for i in range(9)
    ]  # fmt: skip
    lines(tmp_path / "observations.jsonl", *rows)
    assert decide(load_case(tmp_path)).verdict.layer == layer
