"""``detdiag diff A B``: two requests, prompts or token-id lists."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from detdiag.errors import DetdiagError, Exit


def register(app: typer.Typer) -> None:
    app.command("diff", help="Compare two requests, prompts or token-id lists to the byte.")(diff)


def diff(
    a: Annotated[Path, typer.Argument(help="A request (JSON), a prompt or a list of token ids.")],
    b: Annotated[Path, typer.Argument(help="What to compare it with.")],
    kind: Annotated[
        str | None,
        typer.Option(help="request, tokens, text or bytes (default: by content)."),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="Write a report; the extension picks the format."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Exit 0: equal, or different only in what cannot change the output; 1: different."""
    from detdiag.inputs.compare import KINDS, compare_files

    if kind is not None and kind not in KINDS:
        raise DetdiagError(f"unknown kind {kind!r}; expected one of: {', '.join(KINDS)}")
    found = compare_files(a, b, kind)
    if as_json:
        import json

        print(json.dumps(found.to_dict(), ensure_ascii=True, indent=2, default=str))
    else:
        print("\n".join(found.lines))
    if output:
        _write(output, found, (a, b))
    raise typer.Exit(int(Exit.ATTRIBUTED if found.differs else Exit.CLEAN))


def _write(paths: list[Path], found: Any, files: tuple[Path, Path]) -> None:
    """The same report object as every command's, with one layer judged."""
    from detdiag.evidence.case import Case
    from detdiag.report import write_outputs
    from detdiag.verdict import decide

    case = Case(
        findings=found.findings,
        target={"kind": "diff", "a": files[0].name, "b": files[1].name},
        series={"input_diff": found.detail["input_diff"]} if "input_diff" in found.detail else {},
    )
    write_outputs(decide(case).to_dict(), paths)
