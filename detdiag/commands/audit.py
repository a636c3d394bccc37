"""``detdiag audit``: what a request, a launch line or a model file really does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from detdiag.errors import DetdiagError, Exit

if TYPE_CHECKING:
    from detdiag.audit import AuditResult
    from detdiag.evidence.finding import Finding

LEVELS: Final = ("high", "medium", "low", "info")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("audit")(audit)


def audit(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Request bodies, launch lines, generation_config.json, Modelfiles, env files "
            "(several files are one deployment), or folders to walk.",
            show_default=False,
        ),
    ],
    surface: Annotated[
        str | None,
        typer.Option(help="Surface of files that do not say it, such as vllm.openai_request."),
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option(help="Version of the engine, such as 0.8.1 or b6927.")
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Report file; the extension picks the format. Repeatable.",
        ),
    ] = None,
    fix: Annotated[
        Path | None,
        typer.Option(metavar="OUT", help="Write the corrected file (a folder for several)."),
    ] = None,
    harden: Annotated[
        bool,
        typer.Option(
            "--harden",
            help="With --fix: also set the switches against batch dependence (they cost speed).",
        ),
    ] = False,
    fail_on: Annotated[
        str, typer.Option(help="Exit 1 at or above this severity: high, medium, low, info, never.")
    ] = "high",
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only the last line.")] = False,
    lang: Annotated[str, typer.Option(help="Language of the text: en or zh.")] = "en",
    redact: Annotated[str, typer.Option(help="none, prompts or all.")] = "none",
) -> None:
    """Judge configuration against what each engine and provider really does, by version."""
    from detdiag.audit import walk
    from detdiag.audit.deployment import AuditResult, audit_files
    from detdiag.report.messages import speaker

    speaker(lang)
    if fail_on not in (*LEVELS, "never"):
        raise DetdiagError(f"unknown severity {fail_on!r}", tip="one of high medium low info never")
    outputs = [Path(name) for name in output or ()]
    if outputs:
        from detdiag.report.outputs import check_outputs

        check_outputs(outputs)
    files, folders = _split(paths)
    total = AuditResult()
    if files:
        result = audit_files(files, surface=surface, engine_version=engine_version)
        _require_content(result, files)
        _extend(total, result)
    for folder in folders:
        walked = walk.audit_folder(folder, surface=surface, engine_version=engine_version)
        _extend(total, walked.result)
        for line in walked.unreadable if not quiet else ():
            print(f"not read: {line}", file=sys.stderr)
    reached = [f for f in total.findings if f.kind != "ok" and _at_least(f, fail_on)]
    _write(total, outputs, paths, as_json=as_json, lang=lang, redact=redact)
    if fix is not None:
        from detdiag.audit.fix import write_fixed

        for line in write_fixed(
            total, fix, engine_version=engine_version, surface=surface, harden=harden
        ):
            print(line, file=sys.stderr)
    count = len({doc.path for doc in total.documents})
    _show(total, count, fail_on, len(reached), lang, as_json=as_json, quiet=quiet)
    if files and not folders:
        _ask(total)
    raise typer.Exit(int(Exit.ATTRIBUTED if reached else Exit.CLEAN))


def _split(paths: list[Path]) -> tuple[list[Path], list[Path]]:
    for path in paths:
        if not path.exists():
            raise DetdiagError("no such file or folder", path=path)
    return [p for p in paths if not p.is_dir()], [p for p in paths if p.is_dir()]


def _require_content(result: AuditResult, files: list[Path]) -> None:
    seen = {doc.path for doc in result.documents}
    for path in files:
        if str(path) not in seen:
            raise DetdiagError(
                "holds no request, launch line or settings that can be audited",
                path=path,
                tip="name what it is with --surface, or a first line '# surface: NAME'",
            )


def _ask(result: AuditResult) -> None:
    """Exit 2 with the candidates where a lone document's surface is not unique."""
    if len(result.documents) != len(result.unplaced) or not result.unplaced:
        return
    path, candidates = result.unplaced[0]
    raise DetdiagError(
        "the content fits several surfaces; pass --surface with one of " + ", ".join(candidates)
        if candidates
        else "the content fits no known surface; pass --surface NAME",
        path=path,
    )


def _extend(total: AuditResult, more: AuditResult) -> None:
    total.findings.extend(more.findings)
    total.effective.extend(more.effective)
    total.unplaced.extend(more.unplaced)
    total.documents.extend(more.documents)


def _at_least(finding: Finding, level: str) -> bool:
    return level != "never" and LEVELS.index(finding.severity) <= LEVELS.index(level)


def _report(result: AuditResult, paths: list[Path]) -> dict[str, Any]:
    from detdiag.evidence.case import Case
    from detdiag.verdict import decide

    case = Case(
        findings=tuple(result.findings),
        target={"kind": "files", "name": " ".join(str(p) for p in paths)},
        method={"command": "detdiag audit " + " ".join(str(p) for p in paths)},
        series={"effective_params": result.effective},
    )
    return decide(case).to_dict()


def _write(
    result: AuditResult,
    outputs: list[Path],
    paths: list[Path],
    *,
    as_json: bool,
    lang: str,
    redact: str,
) -> None:
    if not outputs and not as_json:
        return
    from detdiag.report.outputs import kind_of, write_outputs

    report = _report(result, paths)
    for path in outputs:
        machine = str(path) != "-" and kind_of(path) in ("sarif", "junit", "codequality")
        shown = for_machines(report) if machine else report
        write_outputs(shown, [path], lang=lang, redact=redact)
    if as_json:
        write_outputs(report, [Path("-")], stdout_kind="json", redact=redact)


def for_machines(report: dict[str, Any]) -> dict[str, Any]:
    """The report with every finding that accuses marked failed: code scanners list failures only,
    and the severity tells them apart."""
    layers = []
    for layer in report["layers"]:
        findings = [
            {**f, "outcome": "failed"}
            if f.get("kind") not in (None, "ok") and f["outcome"] == "inconclusive"
            else f
            for f in layer["findings"]
        ]
        layers.append({**layer, "findings": findings})
    return {**report, "layers": layers}


def _show(
    result: AuditResult,
    files: int,
    fail_on: str,
    reached: int,
    lang: str,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    from detdiag.audit import text

    if not as_json and not quiet:
        for line in text.findings_lines(result.findings, lang):
            print(line)
        for line in text.notes_lines(result.findings, lang):
            print(line)
        for line in text.effective_lines(result.effective, lang):
            print(line)
    sys.stdout.flush()
    print(text.closing_line(result.findings, files, fail_on, reached, lang), file=sys.stderr)
