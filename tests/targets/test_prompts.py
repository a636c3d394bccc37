"""Prompt files: what is kept, what is refused, and where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detdiag.errors import DetdiagError
from detdiag.targets.prompts import load_prompts


def write(tmp_path: Path, name: str, data: bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def test_text_has_one_prompt_a_line(tmp_path: Path) -> None:
    path = write(tmp_path, "p.txt", b"first \r\n\n  second\nthird")
    assert [p.text for p in load_prompts(path)] == ["first ", "  second", "third"]


def test_byte_order_mark_stays_in_the_prompt(tmp_path: Path) -> None:
    path = write(tmp_path, "p.txt", b"\xef\xbb\xbfhello\n")
    assert load_prompts(path)[0].text == "\ufeffhello"


def test_jsonl_takes_messages_prompts_and_ids(tmp_path: Path) -> None:
    lines = [
        {"id": "chat", "messages": [{"role": "user", "content": "hi"}]},
        {"prompt": "plain"},
        {"text": "other"},
    ]
    data = "\n".join(json.dumps(line) for line in lines).encode()
    chat, plain, other = load_prompts(write(tmp_path, "p.jsonl", data))
    assert (chat.id, chat.text) == ("chat", None)
    assert chat.messages == ({"role": "user", "content": "hi"},)
    assert (plain.id, plain.text, other.text) == ("p2", "plain", "other")


def test_json_array(tmp_path: Path) -> None:
    path = write(tmp_path, "p.json", b'["a", {"prompt": "b"}]')
    assert [p.text for p in load_prompts(path)] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "data", "line", "words"),
    [
        ("p.txt", "ok\ncaf\xe9".encode("latin-1"), 2, "0xe9 at column 4"),
        ("p.jsonl", b'{"prompt": "a"}\n{"prompt": ', 2, "not valid JSON"),
        ("p.jsonl", b'{"prompt": 3}', 1, "expected 'messages', 'prompt' or 'text'"),
        ("p.jsonl", b'{"messages": []}', 1, "non-empty list"),
        ("p.txt", b"\n \n", None, "no prompt"),
        ("p.jsonl", b'{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}', None, "used twice"),
    ],
)
def test_refusals_name_the_line(
    tmp_path: Path, name: str, data: bytes, line: int | None, words: str
) -> None:
    with pytest.raises(DetdiagError) as caught:
        load_prompts(write(tmp_path, name, data))
    assert caught.value.line == line
    assert words in caught.value.message


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DetdiagError, match="cannot read"):
        load_prompts(tmp_path / "nothing.txt")
