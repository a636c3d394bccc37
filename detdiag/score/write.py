"""Every file of one score: html, json, md, txt and the record it was computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.report.outputs import put, record_bytes
from detdiag.report.safe import dump_json

KINDS: Final = {
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".md": "md",
    ".markdown": "md",
    ".txt": "text",
    ".ndjson": "record",
    ".jsonl": "record",
}


def check_outputs(paths: Sequence[Path]) -> None:
    """Refuse an unknown extension before anything is measured."""
    for path in paths:
        if str(path) != "-" and path.suffix.lower() not in KINDS:
            known = " ".join(k for k in KINDS if k not in (".htm", ".markdown"))
            raise DetdiagError(
                "cannot tell the format from the extension", path=path, tip=f"known: {known}"
            )


def render(score: Mapping[str, Any], kind: str, *, lang: str = "en", plotly: str = "embed") -> str:
    """One format as text to be stored in UTF-8."""
    if kind == "html":
        from detdiag.score.html import render_html

        text = render_html(score, lang=lang, plotly=plotly)
    elif kind == "json":
        text = dump_json(score) + "\n"
    elif kind == "md":
        from detdiag.score.text import render_markdown

        text = render_markdown(score, lang=lang)
    else:
        from detdiag.score.text import lines
        from detdiag.score.words import sentence, speaker

        say = speaker(lang)
        text = "\n".join([*lines(score, say), sentence(score, say), ""])
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def write_all(
    score: Mapping[str, Any],
    paths: Sequence[Path],
    record: Path | None,
    *,
    json_: bool = False,
    lang: str = "en",
    plotly: str = "embed",
    redact: str = "none",
) -> list[Path]:
    """Write ``paths`` (``-`` and ``json_``: stdout). The record itself is not written over.

    Everything is rendered before the first file is touched.
    """
    made: list[tuple[Path, bytes]] = []
    for path in [*paths, *([Path("-")] if json_ else [])]:
        kind = ("json" if json_ else "text") if str(path) == "-" else KINDS[path.suffix.lower()]
        if kind != "record":
            made.append((path, render(score, kind, lang=lang, plotly=plotly).encode()))
        elif path != record or redact != "none":
            made.append((path, record_bytes(path, record, redact)))
    return [path for path, body in made if put(path, body)]
