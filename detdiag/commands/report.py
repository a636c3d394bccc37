"""``detdiag report``: any format again from a record or a JSON report, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from detdiag.errors import DetdiagError


def report(
    source: Annotated[
        Path, typer.Argument(metavar="RECORD", help="A record (.ndjson) or a JSON report.")
    ],
    output: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write FILE; the extension picks html, json, md, txt, sarif, xml (JUnit), "
            "codequality.json or ndjson. Repeatable; - is stdout.",
        ),
    ] = None,
    style: Annotated[
        str | None,
        typer.Option(help="Markdown style: report, postmortem, checklist or github."),
    ] = None,
    lang: Annotated[str, typer.Option(help="Language of fixed text: en or zh.")] = "en",
    redact: Annotated[str, typer.Option(help="none, prompts or all.")] = "none",
    plotly: Annotated[str, typer.Option(help="Figures in HTML: embed, none or cdn.")] = "embed",
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Only the verdict sentence on stderr.")
    ] = False,
) -> None:
    """Render a record again: HTML, Markdown, JSON, SARIF, JUnit, GitLab, text."""
    from detdiag.report.outputs import check_outputs, write_outputs
    from detdiag.report.redact import redact as hide

    _check_choices(lang, redact, plotly, style)
    paths = output or ["-"]
    check_outputs(paths)
    if style and not any(Path(p).suffix.lower() in (".md", ".markdown", "") for p in paths):
        raise DetdiagError("--style speaks of Markdown only", tip="add -o FILE.md")
    made, record = load_report(source)
    written = write_outputs(
        made,
        paths,
        stdout_kind="json" if as_json else "md" if style else "text",
        lang=lang,
        redact=redact,
        plotly=plotly,
        style=style,
        record=record,
    )
    _say_written(hide(made, redact), written, "-" in paths, quiet, lang)


def _check_choices(lang: str, redact: str, plotly: str, style: str | None) -> None:
    from detdiag.report.html import PLOTLY_MODES
    from detdiag.report.markdown import STYLES
    from detdiag.report.messages import LANGS
    from detdiag.report.redact import LEVELS

    for option, value, known in (
        ("--lang", lang, LANGS),
        ("--redact", redact, LEVELS),
        ("--plotly", plotly, PLOTLY_MODES),
        ("--style", style or "report", STYLES),
    ):
        if value not in known:
            raise DetdiagError(
                f"{option} {value!r} is not known", tip="one of: " + ", ".join(known)
            )


def _say_written(
    made: dict[str, Any], written: list[tuple[Path, int]], on_stdout: bool, quiet: bool, lang: str
) -> None:
    import sys

    from detdiag.report.numbers import bytes_text
    from detdiag.report.text import print_summary

    if not quiet:
        for path, size in written:
            print(f"wrote {path} ({bytes_text(size)})", file=sys.stderr)
    if not on_stdout or not sys.stdout.isatty():
        print_summary(made, quiet=True, lang=lang)


def load_report(path: Path) -> tuple[dict[str, Any], Path | None]:
    """``(report dict, record path or None)`` of a record or a JSON report.

    A JSON report is told by its ``schema``; anything else must be a record.
    """
    try:
        head = path.read_bytes()[:65536].lstrip()
    except OSError as error:
        raise DetdiagError(f"cannot read: {error.strerror}", path=path) from error
    if not head:
        raise DetdiagError("the file is empty", path=path)
    first = head.split(b"\n", 1)[0]
    if b'"detdiag.record/' in first or path.suffix.lower() in (".ndjson", ".jsonl"):
        return _from_record(path), path
    return _from_json(path), None


def _from_record(path: Path) -> dict[str, Any]:
    from dataclasses import replace

    from detdiag.evidence.record import read_record
    from detdiag.verdict import decide

    case = read_record(path)
    known = {**case.series.get("reproduce", {}), "command": case.method.get("command")}
    sha = case.series.get("record", {}).get("sha256")
    series = {**case.series, "reproduce": {**known, "record_sha256": sha}}
    return decide(replace(case, series=series)).to_dict()


def _from_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise DetdiagError("not UTF-8 text", path=path) from error
    except ValueError as error:
        line = getattr(error, "lineno", None)
        raise DetdiagError(f"not valid JSON: {error}", path=path, line=line) from error
    if not isinstance(raw, dict) or raw.get("schema") != "detdiag.report/1":
        raise DetdiagError(
            "expected a record (.ndjson) or a JSON report of schema 'detdiag.report/1'", path=path
        )
    return raw


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("report")(report)
