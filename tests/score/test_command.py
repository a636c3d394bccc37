"""``detdiag score --case``: exit codes, outputs, comparison, and one line for bad input."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from detdiag.evidence.record import RecordWriter
from tests.score.command import Done, detdiag
from tests.score.make import solo

Call = Callable[..., Done]
FIXTURES = Path(__file__).parents[2] / "fixtures" / "cases"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return lambda *arguments: detdiag(monkeypatch, capsys, *arguments)


def record(path: Path, outputs: dict[str, Sequence[str]]) -> Path:
    with RecordWriter(path, {"target": {"kind": "local", "name": "m"}}) as writer:
        for one in solo(outputs):
            writer.write(one)
    return path


STEADY = {"p": ["a"] * 120, "q": ["b"] * 120}


@pytest.mark.parametrize(
    ("outputs", "target", "code"),
    [
        (STEADY, None, 0),
        (STEADY, 0.95, 0),
        ({"p": ["a", "b"] * 60}, 0.95, 1),
        ({"p": ["a"] * 6}, 0.95, 4),
        ({"p": ["a"]}, None, 4),
        ({"p": ["a", "b"] * 60}, None, 0),
    ],
    ids=["no target", "reached", "missed", "undecided", "one run", "no target, unsteady"],
)
def test_exit_codes(
    call: Call, tmp_path: Path, outputs: dict[str, list[str]], target: float | None, code: int
) -> None:
    path, out = record(tmp_path / "r.ndjson", outputs), tmp_path / "s.json"
    asked = [] if target is None else ["--target", target]
    done = call("score", "--case", path, "-o", out, *asked)
    assert done.code == code, done.err
    found = json.loads(out.read_text())
    assert found["schema"] == "detdiag.score/1"
    assert " ".join(done.last.split()) == found["summary"]["sentence"]
    assert done.out == ""


def test_every_output_and_the_same_score_from_its_own_record(call: Call, tmp_path: Path) -> None:
    path = record(tmp_path / "r.ndjson", {"p": ["a", "b"] * 4, "q": ["c"] * 8})
    names = ["s.html", "s.json", "s.md", "s.txt"]
    done = call("score", "--case", path, *[x for n in names for x in ("-o", tmp_path / n)])
    assert done.code == 0, done.err
    assert all((tmp_path / name).stat().st_size > 500 for name in names)
    again = call("score", "--case", path, "--json", "--quiet")
    printed, written = json.loads(again.out), json.loads((tmp_path / "s.json").read_text())
    for one in (printed, written):
        one["method"].pop("command")
    assert printed == written


def test_a_case_folder_is_scored(call: Call, tmp_path: Path) -> None:
    """Sixty equal answers under one condition."""
    out = tmp_path / "s.json"
    done = call("score", "--case", FIXTURES / "clean-sixty-repeats", "-o", out, "--quiet")
    found = json.loads(out.read_text())
    assert done.code == 0 and found["summary"]["agreement"] == 1.0
    assert len(done.err.strip().splitlines()) == 1


def test_before_and_after(call: Call, tmp_path: Path) -> None:
    broken = {f"p{i}": ["a", "b", "a", "c"] * 3 for i in range(6)}
    fixed = {f"p{i}": ["a"] * 12 for i in range(6)}
    before, after = record(tmp_path / "a.ndjson", broken), record(tmp_path / "b.ndjson", fixed)
    out = tmp_path / "s.json"
    done = call("score", "--case", after, "--compare", before, "-o", out, "-o", tmp_path / "s.html")
    found = json.loads(out.read_text())["compare"]
    # Of 12 runs 6 a, 3 b, 3 c: (30 + 6 + 6) / 132.
    assert found["before"] == pytest.approx(42 / 132) and found["after"] == 1.0
    assert found["p"] == pytest.approx(2 / 2**6) and found["exact"]
    assert "6 prompts better, 0 worse" in " ".join(done.err.split())
    assert "6 prompts better" in (tmp_path / "s.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score"], "name exactly one of"),
        (["score", "--demo", "--case", "x"], "name exactly one of"),
        (["score", "--case", "/no/such"], "no such case"),
        (["score", "--demo", "--target", "1"], "can never be shown"),
        (["score", "--demo", "--target", "99"], "between 0 and 1"),
        (["score", "--demo", "--confidence", "0.2"], "0.5 or more"),
        (["score", "--demo", "--conditions", "sole"], "did you mean 'solo'"),
        (["score", "--demo", "--conditions", "load"], "cannot be had here"),
        (["score", "--demo-fault", "dropot"], "did you mean 'dropout'"),
        (["score", "--demo", "-o", "x.docx"], "extension"),
        (["score", "--demo", "--answer-regex", "("], "answer-regex"),
        (["score", "--demo", "--lang", "fr"], "unknown language"),
        (["score", "--demo", "--redact", "some"], "unknown level"),
        (["score", "--demo", "--budget", "soon"], "expected a time"),
        (["score", "--demo", "--compare", "/no/such.ndjson"], "no such record"),
        (["score", "--endpoint", "http://x"], "model-name"),
        (["score", "--model", "/no/such/model"], "not a model folder"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(call: Call, arguments: list[str], message: str) -> None:
    done = call(*arguments)
    assert done.code == 2
    assert message in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_a_broken_record_names_its_line(call: Call, tmp_path: Path) -> None:
    path = record(tmp_path / "r.ndjson", {"p": ["a"] * 3})
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], "{broken", *lines[2:]]))
    done = call("score", "--case", path)
    assert done.code == 2 and "r.ndjson:3:" in done.err


def test_redacted_outputs_hold_no_text(call: Call, tmp_path: Path) -> None:
    secret, other = "the patient is called Zebulon", "the patient is called Quinlan"
    path = record(tmp_path / "r.ndjson", {"ward-seven": [secret, other] * 4})
    outs = [tmp_path / f"s.{kind}" for kind in ("html", "json", "md", "txt", "ndjson")]
    for level in ("prompts", "all"):
        done = call(
            "score", "--case", path, "--redact", level, *[x for o in outs[:4] for x in ("-o", o)]
        )
        assert done.code == 0, done.err
        for out in outs[:4]:
            text = out.read_text("utf-8") + done.err
            assert "Zebulon" not in text and "Quinlan" not in text
            if level == "all":
                assert "ward-seven" not in text


def test_chinese(call: Call, tmp_path: Path) -> None:
    path, out = record(tmp_path / "r.ndjson", STEADY), tmp_path / "s.html"
    done = call("score", "--case", path, "--lang", "zh", "-o", out)
    assert "两两一致率" in done.err
    page = out.read_text("utf-8")
    assert 'lang="zh-Hans"' in page and "输出的可重复性" in page


def test_no_torch(tmp_path: Path) -> None:
    import subprocess
    import sys

    path = record(tmp_path / "r.ndjson", {"p": ["a", "b"] * 4})
    program = (
        "import sys; sys.argv = ['detdiag', 'score', '--case', sys.argv[1], '--quiet']\n"
        "from detdiag.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_only_prompts_in_both_are_compared(call: Call, tmp_path: Path) -> None:
    before = record(tmp_path / "a.ndjson", {"p": ["a", "b"] * 6, "old": ["x", "y"] * 6})
    after = record(tmp_path / "b.ndjson", {"p": ["a"] * 12, "new": ["x", "y", "z"] * 4})
    out = tmp_path / "s.json"
    done = call("score", "--case", after, "--compare", before, "-o", out)
    found = json.loads(out.read_text())["compare"]
    assert found["prompts"] == 1 and found["why"] == "one"
    now = next(f["after"]["value"] for f in found["figures"] if f["name"] == "pairwise agreement")
    assert now == 1.0
    assert "One prompt in both" in done.err


def test_cache_hits_that_a_log_names_are_no_score(call: Call, tmp_path: Path) -> None:
    """A LiteLLM log: one answer of the model, nine of the response cache."""
    log = tmp_path / "litellm.jsonl"
    rows = [
        {
            "id": f"c{i}", "call_type": "acompletion", "model": "m", "model_group": "m",
            "custom_llm_provider": "openai", "cache_hit": i > 0,
            "messages": [{"role": "user", "content": "why?"}],
            "model_parameters": {"temperature": 0},
            "response": {
                "id": "chatcmpl-1", "object": "chat.completion", "created": 1930000000,
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "so"}}],
            },
            "startTime": 1930000000.0 + i, "endTime": 1930000001.0 + i, "status": "success",
        }
        for i in range(10)
    ]  # fmt: skip
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in (log, tmp_path):
        done = call("score", "--case", path)
        assert done.code == 4, done.err
        assert "9 replies came from a response cache" in " ".join(done.err.split())
