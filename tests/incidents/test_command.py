"""``detdiag incidents`` as a user runs it: reports, exit codes, hostile text, redaction."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.incidents.logs import Row, planted, row, write


def detdiag(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "detdiag", "incidents", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def by_replica(prompt: int, c: Row) -> str:
    return f"answer {prompt}" + (" west" if c["replica"] == "west" else "")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("log") / "log.jsonl", planted(by_replica))


def test_incidents_found_is_exit_one_and_the_sentence_comes_last(log: Path, tmp_path: Path) -> None:
    names = [tmp_path / f"out.{kind}" for kind in ("html", "json", "md")]
    done = detdiag(log, "-o", names[0], "-o", names[1], "-o", names[2])
    assert done.returncode == 1, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("20 of 20 repeated requests got more than one answer")
    assert "association" in last and "association, not proof" in done.stderr
    report = json.loads(names[1].read_text())
    assert report["schema"] == "detdiag.incidents/1" and report["found"] == 20
    assert report["inert"] == {"user": 160}
    for path in (names[0], names[2]):
        assert report["sentence"].split(";")[0] in path.read_text()
        assert "association, not proof" in path.read_text()


def test_a_clean_log_is_exit_zero(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", [row(i, f"q{i % 3}", "same") for i in range(9)])
    done = detdiag(path)
    assert done.returncode == 0 and "No difference seen: 3 repeated requests" in done.stderr
    assert "deterministic" not in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot read"), ('{"a": 1}\n{"b": 2}\n', "no log format recognised"), ("", "empty")],
)
def test_unreadable_input_is_one_line_and_exit_two(
    tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "log.jsonl"
    if text is not None:
        path.write_text(text)
    done = detdiag(path)
    assert done.returncode == 2 and said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr


def test_usage_errors(log: Path, tmp_path: Path) -> None:
    assert detdiag().returncode == 2
    assert detdiag(log, "-o", tmp_path / "x.pdf").returncode == 2
    assert detdiag(log, "--redact", "some").returncode == 2


def test_signature(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text('{"user": "u", "prompt": "p", "model": "m", "temperature": 0.0}')
    done = detdiag("--signature", path)
    assert done.returncode == 0
    body, _, rest = done.stdout.partition("signature: ")
    assert json.loads(body) == {"model": "m", "prompt": "p", "temperature": 0}
    assert re.fullmatch(r"sha256:[0-9a-f]{64}\nleft out: user\n", rest)
    path.write_text('{"user": "v", "temperature": 0, "model": "m", "prompt": "p"}')
    assert detdiag("--signature", path).stdout.partition("signature: ")[2] == rest
    path.write_text("[1]")
    assert detdiag("--signature", path).returncode == 2


HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e|`{{7*7}}"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)


def test_hostile_text_is_inert_everywhere(tmp_path: Path) -> None:
    rows = [row(i, HOSTILE, HOSTILE + "ab"[i % 2], replica=HOSTILE) for i in range(8)]
    path = write(tmp_path / "log.jsonl", rows)
    done = detdiag(path, "-o", tmp_path / "o.html", "-o", tmp_path / "o.md", "--json")
    assert done.returncode == 1, done.stderr
    page, note = (tmp_path / "o.html").read_text(), (tmp_path / "o.md").read_text()
    for text in (page, note, done.stdout, done.stderr):
        assert "\x1b" not in text and "\u202e" not in text
    parser = Tags()
    parser.feed(page)
    assert "script" not in parser.tags
    assert "{{7*7}}" in page and "<script>" not in note
    assert json.loads(done.stdout)["incidents"][0]["prompt"] == HOSTILE


@pytest.mark.parametrize("level", ["prompts", "all"])
def test_redaction_leaves_no_text(tmp_path: Path, level: str) -> None:
    rows = [
        row(i, "SECRET question", f"SECRET answer {i % 2}", replica=f"host-{i % 2}")
        for i in range(8)
    ]
    path = write(tmp_path / "log.jsonl", rows)
    path.write_text(path.read_text() + "SECRET broken line\n")
    out = [tmp_path / f"o.{kind}" for kind in ("html", "md", "json")]
    detdiag(path, "-o", out[0], "-o", out[1], "-o", out[2], "--redact", level)
    for one in out:
        assert "SECRET" not in one.read_text()
        assert ("host-1" in one.read_text()) == (level == "prompts" and one.suffix != ".md")
