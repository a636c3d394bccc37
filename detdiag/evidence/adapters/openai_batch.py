"""OpenAI batch files (and Anthropic's): output lines joined with input lines by ``custom_id``.

The input is looked for in the same file and beside it. The order of output lines means nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.evidence.adapters.document import Document, read_document
from detdiag.evidence.adapters.interface import Broken, Exchange
from detdiag.evidence.adapters.shape import dig, first, integer, label, obj, text
from detdiag.evidence.adapters.surfaces import surface_of

name: Final = "OpenAI batch"
lacks: Final = ("batch", "expert routing", "concurrency", "replica", "end time")
MAX_SIBLINGS: Final = 64
MAX_SIBLING_BYTES: Final = 1 << 30


def matches(document: Document) -> bool:
    rows = document.sample()
    return (
        bool(rows)
        and all("custom_id" in row for row in rows)
        and any(_is_input(row) or _is_output(row) for row in rows)
    )


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    outputs = [(line, row) for line, row in document.rows if _is_output(row)]
    inputs, clashing = _inputs(document, {str(dig(row, "custom_id")) for _, row in outputs})
    for line, row in outputs:
        ident = str(row.get("custom_id"))
        yield _exchange(line, ident, row, None if ident in clashing else inputs.get(ident))


def _is_input(row: Any) -> bool:
    return isinstance(first(row, "body", "params"), Mapping) and "custom_id" in row


def _is_output(row: Any) -> bool:
    return "custom_id" in obj(row) and any(key in row for key in ("response", "error", "result"))


def _exchange(
    line: int, ident: str, row: Mapping[str, Any], sent: Mapping[str, Any] | None
) -> Exchange:
    body = dig(row, "response", "body")
    if body is None:
        body = dig(row, "result", "message")
    request = obj(first(sent, "body", "params")) or None
    return Exchange(
        line=line,
        id=ident,
        request=request,
        response=body,
        surface=surface_of(text(dig(sent, "url")), request, body),
        left_out=_left_out(row),
    )


def _left_out(row: Mapping[str, Any]) -> str | None:
    status = integer(dig(row, "response", "status_code"))
    if row.get("error"):
        return f"batch error {label(dig(row, 'error', 'code')) or ''}".rstrip()
    if status is not None and status >= 400:
        return f"HTTP status {status}"
    kind = label(dig(row, "result", "type"))
    return f"batch result {kind}" if kind not in (None, "succeeded") else None


def _inputs(document: Document, wanted: set[str]) -> tuple[dict[str, Mapping[str, Any]], set[str]]:
    """Input lines by custom id, and the ids that two inputs use for different bodies."""
    found: dict[str, Mapping[str, Any]] = {}
    clashing: set[str] = set()
    own = [row for _, row in document.rows if _is_input(row)]
    for row in own or _sibling_inputs(document.path, wanted):
        ident = str(row.get("custom_id"))
        known = found.setdefault(ident, row)
        if first(known, "body", "params") != first(row, "body", "params"):
            clashing.add(ident)
    return found, clashing


def _sibling_inputs(path: Path, wanted: set[str]) -> Iterator[Mapping[str, Any]]:
    try:
        siblings = sorted(p for p in path.parent.iterdir() if p != path and p.is_file())
    except OSError:
        return
    for sibling in [p for p in siblings if ".json" in p.name][:MAX_SIBLINGS]:
        try:
            if sibling.stat().st_size > MAX_SIBLING_BYTES or not _looks_like_input(sibling):
                continue
            rows = read_document(sibling).rows
        except (DetdiagError, OSError):
            continue
        yield from (r for _, r in rows if _is_input(r) and str(r.get("custom_id")) in wanted)


def _looks_like_input(path: Path) -> bool:
    with open(path, "rb") as file:
        head = file.read(4096)
    return b'"custom_id"' in head or head[:2] == b"\x1f\x8b" or head[:4] == b"\x28\xb5\x2f\xfd"
