"""``detdiag fingerprint``: take one, compare two, or group many. Reads files only."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from detdiag.errors import DetdiagError, Exit


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
    models, given = model or [], prints or []
    if models and given:
        given, models = [*given, *models], []
    if history is not None:
        _follow(history, [*given, *models], as_json, threads)
    if not given and len(models) <= 1:
        _take(models[0] if models else None, output or [], threads)
    elif len(given) == 1:
        raise DetdiagError("one fingerprint given; comparing needs two or more", path=given[0])
    elif len(given) == 2:
        _compare(given[0], given[1], output or [], as_json, threads)
    else:
        _group(given or models, output or [], as_json, threads)


def _take(model: Path | None, output: list[Path], threads: int | None) -> None:
    from detdiag.fingerprint.collect import fingerprint as take

    facts = take(model, threads=threads)
    text = json.dumps(facts, ensure_ascii=True, indent=1) + "\n"
    if not output:
        print(text, end="")
    for path in output:
        _write_text(path, text)
        print(f"wrote {path}", file=sys.stderr)


def _follow(history: Path, sources: list[Path], as_json: bool, threads: int | None) -> None:
    """Exit 1 when the newest entry differs from the one before it."""
    from detdiag.fingerprint.collect import fingerprint as take
    from detdiag.fingerprint.history import append, change_points, entries

    if len(sources) > 1:
        raise DetdiagError("--history takes one model folder or fingerprint at a time")
    if not sources and not history.exists():
        raise DetdiagError("no such history; name a model folder to start one", path=history)
    for source in sources:
        append(history, take(source, threads=threads) if source.is_dir() else _load(source, None))
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


def _load(path: Path, threads: int | None) -> Mapping[str, Any]:
    """A fingerprint file, the fingerprint in a report or a record, or that of a model folder's
    files (no machine facts)."""
    from detdiag.fingerprint.collect import model_section
    from detdiag.inputs.compare import read_bytes
    from detdiag.inputs.json_text import parse_json, plain

    if path.is_dir() or path.suffix in (".safetensors", ".gguf", ".bin"):
        return model_section(path, threads=threads)
    if path.suffix == ".ndjson":
        from detdiag.evidence.record import read_record

        return read_record(path).fingerprint
    facts = plain(parse_json(read_bytes(path), path))
    if isinstance(facts, dict) and str(facts.get("schema", "")).startswith("detdiag.report/"):
        facts = facts.get("fingerprint")
    if not isinstance(facts, dict):
        raise DetdiagError("expected a JSON object of version facts", path=path)
    return facts


def _names(paths: list[Path]) -> list[str]:
    short = [path.name for path in paths]
    return short if len(set(short)) == len(short) else [str(path) for path in paths]


def _compare(a: Path, b: Path, output: list[Path], as_json: bool, threads: int | None) -> None:
    from detdiag.fingerprint.behaviour import behaviour_findings
    from detdiag.fingerprint.diff import diff_fingerprints
    from detdiag.fingerprint.findings import fingerprint_findings
    from detdiag.fingerprint.weightdiff import value_comparison

    left, right = _load(a, threads), _load(b, threads)
    values = value_comparison(left, right, a, b) if a.is_dir() and b.is_dir() else None
    rows = diff_fingerprints(left, right, values=values)
    findings = fingerprint_findings(left, right, values=values, names=_pair(_names([a, b])))
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


def _pair(names: list[str]) -> tuple[str, str]:
    return names[0], names[1]


def _print_findings(findings: list[Any]) -> None:
    """Gravest first, one block a kind, one line a field."""
    from detdiag.inputs.characters import visible

    for finding in findings:
        rows = finding.data.get("fingerprint_diff", [])
        if not rows:
            print(finding.summary)
            continue
        print(visible(f"[{finding.severity}] {finding.summary.split(':')[0]}", 300))
        for row in rows[:30]:
            text = row["text"] or f"{row['a']} against {row['b']}"
            words = f"  {row['field']}: {text}  (can change: {_effect(row)}; {row['acts_on']})"
            print(visible(words, 600))
        if len(rows) > 30:
            print(f"  ... and {len(rows) - 30} more")


def _effect(row: Mapping[str, Any]) -> str:
    return "nothing" if row["effect"] == "inert" else str(row["effect"])


def _report(
    output: list[Path], findings: list[Any], table: list[Any], files: tuple[Path, Path]
) -> None:
    from detdiag.evidence.case import Case
    from detdiag.report import write_outputs
    from detdiag.verdict import decide

    case = Case(
        findings=tuple(findings),
        target={"kind": "fingerprints", "a": files[0].name, "b": files[1].name},
        series={"fingerprint_diff": table},
    )
    write_outputs(decide(case).to_dict(), output)


def _group(paths: list[Path], output: list[Path], as_json: bool, threads: int | None) -> None:
    from detdiag.fingerprint.groups import agreeing_groups, aspect_table

    names = _names(paths)
    prints = [(name, _load(path, threads)) for name, path in zip(names, paths, strict=True)]
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
