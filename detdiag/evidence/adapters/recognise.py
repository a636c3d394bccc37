"""What to say about a file that no adapter takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from detdiag.errors import DetdiagError
from detdiag.evidence.adapters.document import Document, read_document
from detdiag.evidence.adapters.registry import ADAPTERS


def why_ignored(path: Path) -> str:
    """One sentence: what the file looks like, and which formats are known."""
    try:
        document = read_document(path)
    except DetdiagError as error:
        return error.message
    known = ", ".join(adapter.name for adapter in ADAPTERS)
    return f"{describe(document)}; known log formats: {known}"


def describe(document: Document) -> str:
    """What was recognised of a document: its syntax, its size and its first field names."""
    if not document.rows:
        return _without_rows(document)
    kind = "JSON" if document.value is not None else "JSON lines"
    kind = "CSV" if document.text is not None and document.value is None else kind
    shown = document.sample(1)
    if not shown:
        return f"{kind} with {len(document.rows)} entries that are not objects"
    return f"{kind}, {_plural(len(document.rows))} with {_fields(shown[0])}"


def _without_rows(document: Document) -> str:
    shown = document.text or ""
    if not shown.strip():
        return "empty"
    if document.broken:
        return document.broken[0][1]
    if "\x00" in shown or shown.count("\ufffd") > len(shown) // 100:
        return "binary data"
    return "text that no format matches"


def _plural(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"


def _fields(row: Mapping[str, object]) -> str:
    names = [repr(str(key)[:40]) for key in list(row)[:8]]
    more = f" and {len(row) - 8} more" if len(row) > 8 else ""
    return f"fields {', '.join(names)}{more}" if names else "no fields"
