"""Read log files into observations, each for itself or the files of a case together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from detdiag.errors import DetdiagError
from detdiag.evidence.adapters import native, openllmetry, otel, otel_events
from detdiag.evidence.adapters.build import build
from detdiag.evidence.adapters.document import Document, read_document
from detdiag.evidence.adapters.interface import Adapted
from detdiag.evidence.adapters.registry import adapter_for
from detdiag.evidence.adapters.spans import read_spans

_OF_SPANS: Final = (otel.name, openllmetry.name)


def read_evidence(path: Path) -> Adapted | None:
    """Observations of one log file; None when no adapter recognises it.

    Gzip and zstd files are read through. Broken lines are counted with their numbers and the rest
    goes on. Raises :class:`DetdiagError` only when the file itself cannot be read.
    """
    return _adapted(read_document(path))


def read_files(paths: Sequence[Path]) -> dict[Path, Adapted | None]:
    """:func:`read_evidence` of each; a collector's file of events is read together with the spans
    it belongs to, which keep no content without it."""
    found = {path: read_evidence(path) for path in paths}
    events = [p for p, one in found.items() if one is not None and one.format == otel_events.name]
    spans = [p for p, one in found.items() if one is not None and one.format in _OF_SPANS]
    return found | _joined({path: found[path] for path in events}, spans)


def _joined(
    events: Mapping[Path, Adapted | None], spans: Sequence[Path]
) -> dict[Path, Adapted | None]:
    """Spans with the events of the other files, and those files with the calls that no span of
    the case holds."""
    if not events or not spans:
        return {}
    out: dict[Path, Adapted | None] = dict(events)
    rows = [row for path in events for row in read_document(path).rows]
    for path in spans:
        document = read_document(path)
        known = {span.span_id for span in read_spans(document)}
        out[path] = _adapted(replace(document, rows=(*document.rows, *rows)))
        for beside in events:
            out[beside] = _without(out[beside], known, path.name)
    return out


def _without(
    events: Adapted | None, known: Collection[str | None], read_with: str
) -> Adapted | None:
    """Events of no known span; an observation of events has the id of its span."""
    assert events is not None
    kept = tuple(o for o in events.observations if o.id not in known)
    if len(kept) == len(events.observations):
        return events
    return replace(events, observations=kept, notes=(), read_with=read_with)


def _adapted(document: Document) -> Adapted | None:
    if native.matches(document):
        return native.adapted(document)
    adapter = adapter_for(document)
    if adapter is None:
        return None
    try:
        return build(
            document.path, adapter.name, adapter.exchanges(document), adapter.lacks, document.broken
        )
    except RecursionError as error:
        raise DetdiagError("nested too deep to read", path=document.path) from error
