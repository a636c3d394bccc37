from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from detdiag.errors import DetdiagError
from detdiag.evidence.observation import Observation, Output
from detdiag.evidence.record import RecordWriter, read_record
from detdiag.report import check_outputs, kind_of, write_outputs
from tests.report.samples import FOLDER, ROOT, sample


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("x.html", "html"),
        ("X.HTM", "html"),
        ("x.json", "json"),
        ("x.md", "md"),
        ("x.sarif", "sarif"),
        ("x.sarif.json", "sarif"),
        ("x.xml", "junit"),
        ("x.txt", "text"),
        ("x.ndjson", "record"),
        ("gl-code-quality-report.json", "codequality"),
        ("out/my.codequality.json", "codequality"),
    ],
)
def test_the_extension_picks_the_format(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_an_unknown_extension_names_the_known_ones() -> None:
    with pytest.raises(DetdiagError, match=r"x\.pdf: cannot tell .*\.html .*\.sarif"):
        check_outputs(["-", "x.pdf"])


def test_nothing_is_written_if_one_output_cannot_be_rendered(tmp_path: Path) -> None:
    with pytest.raises(DetdiagError):
        write_outputs(sample("clean"), [tmp_path / "a.json", tmp_path / "b.ndjson"])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_way_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "a.json").mkdir()
    with pytest.raises(DetdiagError, match="cannot write"):
        write_outputs(sample("clean"), [tmp_path / "a.json"])
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def make_record(path: Path) -> Path:
    method = {"command": "detdiag run --model m -o r.ndjson"}
    with RecordWriter(path, {"target": {"name": "m"}, "method": method}) as writer:
        for i in range(12):
            writer.write(
                Observation(
                    id=f"o{i}",
                    query="q1",
                    output=Output(text=f"a very private answer {'x' if i % 2 else 'y'}"),
                    factors={"batch_size": 1 + 7 * (i % 2), "repeat": i // 2},
                )
            )
    return path


def test_the_record_can_be_written_again_redacted(tmp_path: Path) -> None:
    record = make_record(tmp_path / "r.ndjson")
    write_outputs(sample("clean"), [tmp_path / "copy.ndjson"], record=record)
    assert (tmp_path / "copy.ndjson").read_bytes() == record.read_bytes()
    write_outputs(sample("clean"), [tmp_path / "hid.ndjson"], record=record, redact="prompts")
    assert b"private" not in (tmp_path / "hid.ndjson").read_bytes()
    again = read_record(tmp_path / "hid.ndjson")
    texts = [o.output.text for o in again.observations]
    assert len(texts) == 12 and len(set(texts)) == 2, "equal texts stay equal, others stay apart"


def run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "detdiag", "report", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_a_record_becomes_every_format(tmp_path: Path) -> None:
    record = make_record(tmp_path / "r.ndjson")
    names = [
        "x.html",
        "x.json",
        "x.md",
        "x.sarif",
        "x.xml",
        "x.txt",
        "x.codequality.json",
        "y.ndjson",
    ]
    args = [part for name in names for part in ("-o", tmp_path / name)]
    done = run(record, *args)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "x.json").read_text())
    assert report["verdict"]["layer"] == "batch"
    assert done.stderr.rstrip().split("\n")[-1] == report["verdict"]["sentence"]
    page = (tmp_path / "x.html").read_text()
    assert report["data"]["record"]["sha256"] in page
    assert "detdiag run --model m -o r.ndjson" in page
    again = run(tmp_path / "x.json", "-o", tmp_path / "z.html")
    assert again.returncode == 0
    assert (tmp_path / "z.html").read_bytes() == (tmp_path / "x.html").read_bytes()


def test_stdout_holds_the_report_and_stderr_the_rest() -> None:
    done = run(FOLDER / "clean.json", "--json")
    assert json.loads(done.stdout) == sample("clean")
    done = run(FOLDER / "clean.json", "--style", "postmortem")
    assert done.stdout.startswith("# Postmortem")
    done = run(FOLDER / "clean.json")
    assert done.stdout.rstrip().split("\n")[-1] == sample("clean")["verdict"]["sentence"]


@pytest.mark.parametrize(
    ("content", "args", "said"),
    [
        (b"", (), "the file is empty"),
        (b'{"schema": "detdiag.report/1", ', (), "not valid JSON"),
        (b'{"schema": "other"}', (), "expected a record"),
        (b"\xff\xfe{}", (), "not UTF-8"),
        (b'{"schema": "detdiag.report/1"}', ("-o", "x.pdf"), "known extensions"),
        (b'{"schema": "detdiag.report/1"}', ("--lang", "fr"), "one of: en, zh"),
        (b'{"schema": "detdiag.report/1"}', ("--redact", "some"), "one of: none, prompts, all"),
        (b'{"schema": "detdiag.report/1"}', ("--style", "x"), "one of: report, postmortem"),
        (
            b'{"schema": "detdiag.report/1"}',
            ("-o", "x.html", "--style", "postmortem"),
            "Markdown only",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    tmp_path: Path, content: bytes, args: tuple[str, ...], said: str
) -> None:
    source = tmp_path / "in.json"
    source.write_bytes(content)
    done = run(source, *args)
    assert done.returncode == 2
    assert said in done.stderr and done.stderr.count("\n") == 1


def test_a_missing_file_is_exit_2(tmp_path: Path) -> None:
    done = run(tmp_path / "none.ndjson")
    assert done.returncode == 2 and "cannot read" in done.stderr


def test_no_torch_for_a_record(tmp_path: Path) -> None:
    record = make_record(tmp_path / "r.ndjson")
    code = (
        "import sys; from detdiag.commands.report import load_report; from pathlib import Path;"
        "from detdiag.report import render;"
        f"made, _ = load_report(Path({str(record)!r})); render(made, 'html');"
        "bad = {'torch', 'transformers'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
