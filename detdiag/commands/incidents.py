"""``detdiag incidents LOG...``: requests that got different answers, in logs of any size."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from detdiag.errors import DetdiagError, Exit

if TYPE_CHECKING:
    from detdiag.incidents.mine import Progress


def register(app: typer.Typer) -> None:
    app.command("incidents", help="Find requests that got different answers in recorded logs.")(
        incidents
    )


def incidents(
    logs: Annotated[
        list[Path] | None,
        typer.Argument(help="Logs in any known format; gzip and zstd are read through."),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="Write a report: .html, .json or .md (repeatable)."),
    ] = None,
    signature: Annotated[
        Path | None,
        typer.Option(help="Print the canonical signature of a request body (JSON) and leave."),
    ] = None,
    top: Annotated[int, typer.Option(help="Incidents to show with texts.", min=1)] = 100,
    jobs: Annotated[int | None, typer.Option(help="Processes (default: all cores).", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Seed of the permutation tests.")] = 0,
    redact: Annotated[str, typer.Option(help="none, prompts or all.")] = "none",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON report.")] = False,
) -> None:
    """Exit 0: no incident; 1: incidents found; 2: a log cannot be read."""
    if signature is not None:
        _print_signature(signature, as_json)
        return
    if not logs:
        raise DetdiagError("no log given", tip="detdiag incidents LOG... -o incidents.html")
    from detdiag.incidents.analyse import mine
    from detdiag.incidents.redact import LEVELS
    from detdiag.incidents.redact import redact as redacted
    from detdiag.incidents.render import render

    if redact not in LEVELS:
        raise DetdiagError(f"unknown level {redact!r}", tip="known: " + ", ".join(LEVELS))
    for path in output or ():
        _known_suffix(path)
    found = mine(logs, top=top, jobs=jobs, seed=seed, progress=None if quiet else _progress(logs))
    report = redacted(found.to_dict(), redact)
    for path in output or ():
        _write(path, render(report, path.suffix))
    if as_json:
        print(render(report, ".json"), end="")
    if not quiet:
        _summary(report, output or ())
    raise typer.Exit(int(Exit.ATTRIBUTED if report["found"] else Exit.CLEAN))


def _known_suffix(path: Path) -> None:
    from detdiag.incidents.render import FORMATS

    if path.suffix.lower() not in FORMATS:
        raise DetdiagError(
            f"unknown report format {path.suffix!r}",
            path=path,
            tip="known: " + ", ".join(sorted(FORMATS)),
        )


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise DetdiagError(f"cannot write: {error.strerror}", path=path) from error


def _progress(logs: Sequence[Path]) -> Progress | None:
    """A line that rewrites itself on a terminal, with the time left; nothing elsewhere."""
    if not sys.stderr.isatty():
        return None
    import time

    sizes = {path: path.stat().st_size for path in logs if path.is_file()}
    finished: dict[Path, int] = {}
    start_s = time.monotonic()

    def tell(path: Path, done: int, records: int) -> None:
        finished[path] = min(done, sizes.get(path, done))
        share = sum(finished.values()) / max(1, sum(sizes.values()))
        spent_s = time.monotonic() - start_s
        left_s = spent_s / share - spent_s if share > 0 else 0.0
        line = f"\r{share:4.0%}  {records:,} records of {path.name}  {left_s:.0f} s left \x1b[K"
        print(line, end="\n" if share >= 1 else "", file=sys.stderr, flush=True)

    return tell


def _summary(report: Mapping[str, Any], outputs: Sequence[Path]) -> None:
    """What a person reads: broken lines, the first incidents, the caveat, the sentence last."""
    from detdiag.incidents.model import CAVEAT
    from detdiag.report.safe import one_line, visible

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    for f in report["files"]:
        name = visible(f["path"])
        say(f"{name}: {f['records']:,} records, {f['format']}")
        for why, count in f["left_out"].items():
            say(f"  {count:,} left out: {visible(why)}")
        if f["broken_count"]:
            shown = ", ".join(str(line) for line, _ in f["broken"][:10])
            more = ", ..." if f["broken_count"] > 10 else ""
            say(f"  {f['broken_count']:,} broken lines skipped: {shown}{more}")
        if f["damage"]:
            say(f"  stopped early: {visible(f['damage'])}")
    for i in report["incidents"][:5]:
        say(
            f"{i['rank']:3}. {i['deviating']} of {i['records']} off, {i['distinct']} answers: "
            f"{one_line(i['prompt'], 70)}"
        )
        say(f"     {visible(i['attribution'])}")
    for path in outputs:
        say(f"written: {visible(path)}")
    if report["found"]:
        say(CAVEAT)
    say(visible(report["sentence"]))


def _print_signature(path: Path, as_json: bool) -> None:
    from detdiag.evidence.adapters.document import read_bytes
    from detdiag.evidence.adapters.shape import loads
    from detdiag.incidents.signature import signature
    from detdiag.report.safe import dump_json

    try:
        request = loads(read_bytes(path))
    except (ValueError, UnicodeError) as error:
        line = getattr(error, "lineno", None)
        raise DetdiagError(f"not valid JSON: {error}", path=path, line=line) from error
    if not isinstance(request, Mapping):
        raise DetdiagError("expected a request body: a JSON object", path=path)
    found = signature(request)
    if as_json:
        shown = {"sha256": found.digest, "left_out": found.left_out, "request": found.canonical}
        print(dump_json(shown))
        return
    print(dump_json(found.canonical))
    print(f"signature: {found.digest}")
    print(f"left out: {', '.join(found.left_out) or 'nothing'}")
