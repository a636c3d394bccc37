"""``detdiag fingerprint``: take one, compare two, or group many: files, folders, servers."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from detdiag.errors import DetdiagError, Exit

if TYPE_CHECKING:
    from detdiag.fingerprint.sources import Source


def register(app: typer.Typer) -> None:
    app.command(
        "fingerprint",
        help="Fingerprint a model and this machine, or compare fingerprints by consequence.",
    )(fingerprint)


def fingerprint(
    prints: Annotated[
        list[Path] | None,
        typer.Argument(help="Fingerprints (JSON) or model folders to compare: two or more."),
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option("--model", help="Model folder or weight file; repeat it to group many."),
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option("--endpoint", help="URL of a live server; repeat it to group replicas."),
    ] = None,
    model_name: Annotated[
        str | None,
        typer.Option(help="Model to ask the servers for (default: the only one they list)."),
    ] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the servers' key.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="Header to send to the servers, as NAME=VALUE.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="Compare with this fingerprint, record or report: what moved since."),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="Write here (a fingerprint, or a report of the diff)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    history: Annotated[
        Path | None,
        typer.Option(help="Append to this file (one entry a line) and name what changed, when."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Reader threads (default: up to 8).")
    ] = None,
) -> None:
    """Exit 0: taken, or nothing differs that can change the output; 1: something does."""
    from detdiag.fingerprint.sources import of_machine, of_paths, of_servers

    given, models, urls, out = prints or [], model or [], endpoint or [], output or []
    if not urls and (model_name or api_key_env or header):
        raise DetdiagError("--model-name, --api-key-env and --header go with --endpoint")
    followed = history is not None or baseline is not None
    if followed and len(given) + len(models) + len(urls) > 1:
        raise DetdiagError(
            "--history and --baseline take one model folder, fingerprint or endpoint at a time"
        )
    whole = followed or (len(models) == 1 and not given and not urls)
    sources = of_paths([*given, *models], threads, machine=whole)
    if urls:
        sources += of_servers(urls, model_name, api_key_env, header or [])
    if history is not None:
        _follow(history, sources, as_json)
    if baseline is not None:
        (before,) = of_paths([baseline], threads)
        _compare(before, (sources or [of_machine()])[0], out, as_json)
    if len(given) == 1 and len(sources) == 1:
        raise DetdiagError("one fingerprint given; comparing needs two or more", path=given[0])
    if len(sources) <= 1:
        _show((sources or [of_machine()])[0].facts, out)
    elif given and len(sources) == 2:
        _compare(sources[0], sources[1], out, as_json)
    else:
        _group(sources, out, as_json)


def _show(facts: Mapping[str, Any], output: list[Path]) -> None:
    text = json.dumps(facts, ensure_ascii=True, indent=1) + "\n"
    if not output:
        print(text, end="")
    for path in output:
        _write_text(path, text)
        print(f"wrote {path}", file=sys.stderr)


def _follow(history: Path, sources: Sequence[Source], as_json: bool) -> NoReturn:
    """Exit 1 when the newest entry differs from the one before it."""
    from detdiag.fingerprint.history import append, change_points, entries

    if not sources and not history.exists():
        raise DetdiagError(
            "no such history; name a model folder or an endpoint to start one", path=history
        )
    for source in sources:
        append(history, source.facts)
    kept = entries(history)
    points = change_points(kept)
    if as_json:
        rows = [
            {"before": p.before, "after": p.after, "rows": [r.to_dict() for r in p.rows]}
            for p in points
        ]
        print(json.dumps({"entries": len(kept), "changes": rows}, ensure_ascii=True, indent=1))
    else:
        print(f"{len(kept)} entries, {len(points)} changes that can change the output")
        for point in points:
            _print_point(point)
    moved = bool(change_points(kept[-2:]))
    raise typer.Exit(int(Exit.ATTRIBUTED if moved else Exit.CLEAN))


def _print_point(point: Any) -> None:
    from detdiag.inputs.characters import visible

    print(visible(point.describe(), 300))
    for row in point.rows[:8]:
        print(visible(f"  [{row.severity}] {row.describe()}", 400))


def _write_text(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise DetdiagError(f"cannot write: {error.strerror}", path=path) from error


def _compare(a: Source, b: Source, output: list[Path], as_json: bool) -> NoReturn:
    from detdiag.fingerprint.behaviour import behaviour_findings
    from detdiag.fingerprint.diff import diff_fingerprints
    from detdiag.fingerprint.findings import fingerprint_findings
    from detdiag.fingerprint.weightdiff import value_comparison

    left, right = a.facts, b.facts
    values = None
    if a.folder is not None and b.folder is not None:
        values = value_comparison(left, right, a.folder, b.folder)
    rows = diff_fingerprints(left, right, values=values)
    findings = fingerprint_findings(left, right, values=values, names=_pair(a, b))
    findings += behaviour_findings(left, right, rows)
    differs = any(finding.outcome == "failed" for finding in findings)
    if as_json:
        table = [row.to_dict() for row in rows]
        shown = {"differs": differs, "fingerprint_diff": table, "values": values}
        print(json.dumps(shown, ensure_ascii=True, indent=1))
    else:
        _print_findings(findings)
    if output:
        _report(output, findings, [row.to_dict() for row in rows], (a, b))
    raise typer.Exit(int(Exit.ATTRIBUTED if differs else Exit.CLEAN))


def _pair(a: Source, b: Source) -> tuple[str, str]:
    if a.name == b.name and a.folder and b.folder:
        return str(a.folder), str(b.folder)
    return a.name, b.name


def _print_findings(findings: list[Any]) -> None:
    """Gravest first, one block a kind, one line a field."""
    from detdiag.inputs.characters import visible

    for finding in findings:
        rows = finding.data.get("fingerprint_diff", [])
        if not rows:
            print(finding.summary)
            continue
        print(visible(f"[{finding.severity}] {finding.summary.split(': ')[0]}", 300))
        for row in rows[:30]:
            text = row["text"] or f"{row['a']} against {row['b']}"
            words = f"  {row['field']}: {text}  (can change: {_effect(row)}; {row['acts_on']})"
            print(visible(words, 600))
        if len(rows) > 30:
            print(f"  ... and {len(rows) - 30} more")


def _effect(row: Mapping[str, Any]) -> str:
    return "nothing" if row["effect"] == "inert" else str(row["effect"])


def _report(
    output: list[Path], findings: list[Any], table: list[Any], pair: tuple[Source, Source]
) -> None:
    from detdiag.evidence.case import Case
    from detdiag.report import write_outputs
    from detdiag.verdict import decide

    case = Case(
        findings=tuple(findings),
        target={"kind": "fingerprints", "a": pair[0].name, "b": pair[1].name},
        series={"fingerprint_diff": table},
    )
    write_outputs(decide(case).to_dict(), output)


def _group(sources: Sequence[Source], output: list[Path], as_json: bool) -> NoReturn:
    from detdiag.fingerprint.groups import agreeing_groups, aspect_table

    for path in output:
        if path.suffix != ".json":
            raise DetdiagError("the table of groups is written as .json", path=path)
    prints = [(source.name, source.facts) for source in sources]
    groups = agreeing_groups(prints)
    columns, rows = aspect_table(prints)
    shown = {
        "groups": [
            {
                "group": group.label,
                "members": list(group.members),
                "differs_from_A": [row.to_dict() for row in group.differs],
            }
            for group in groups
        ],
        "columns": list(columns),
        "rows": {name: list(marks) for name, marks in rows},
    }
    text = json.dumps(shown, ensure_ascii=True, indent=1) + "\n"
    for path in output:
        _write_text(path, text)
    if as_json:
        print(text, end="")
    else:
        _print_groups(groups, columns, rows)
    raise typer.Exit(int(Exit.CLEAN if len(groups) == 1 else Exit.ATTRIBUTED))


def _print_groups(groups: Any, columns: Any, rows: Any) -> None:
    from detdiag.inputs.characters import visible

    width = max(len(visible(name, 60)) for name, _ in rows)
    print(" " * width + "  " + "  ".join(columns))
    for name, marks in rows:
        cells = "  ".join(m.center(len(c)) for m, c in zip(marks, columns, strict=True))
        print(f"{visible(name, 60):<{width}}  {cells}".rstrip())
    print()
    for group in groups:
        members = ", ".join(visible(member, 60) for member in group.members)
        print(f"group {group.label}: {members}")
        for row in group.differs[:8]:
            print(visible(f"  [{row.severity}] {row.describe()}", 400))
    if len(groups) == 1:
        print("all agree in every fact that can change the output")
