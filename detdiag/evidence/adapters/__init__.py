"""Logs that other tools wrote, turned into observations. One file a format, found by content."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detdiag.errors import DetdiagError
from detdiag.evidence.adapters import bodies, native
from detdiag.evidence.adapters.build import build
from detdiag.evidence.adapters.document import read_document
from detdiag.evidence.adapters.factors import prompt_token_ids, response_factors
from detdiag.evidence.adapters.interface import Adapted, Adapter, Exchange
from detdiag.evidence.adapters.lacks import untested_layers
from detdiag.evidence.adapters.recognise import describe, why_ignored
from detdiag.evidence.adapters.registry import ADAPTERS, adapter_for
from detdiag.evidence.observation import Output

__all__ = [
    "ADAPTERS",
    "Adapted",
    "Adapter",
    "Exchange",
    "adapt_response",
    "describe",
    "prompt_token_ids",
    "read_evidence",
    "response_factors",
    "untested_layers",
    "why_ignored",
]


def read_evidence(path: Path) -> Adapted | None:
    """Observations of one log file; None when no adapter recognises it.

    Gzip and zstd files are read through. Broken lines are counted with their numbers and the rest
    goes on. Raises :class:`DetdiagError` only when the file itself cannot be read.
    """
    document = read_document(path)
    if native.matches(document):
        return native.adapted(document)
    adapter = adapter_for(document)
    if adapter is None:
        return None
    try:
        return build(
            path, adapter.name, adapter.exchanges(document), adapter.lacks, document.broken
        )
    except RecursionError as error:
        raise DetdiagError("nested too deep to read", path=path) from error


def adapt_response(response: Mapping[str, Any] | Any, surface: str | None = None) -> Output:
    """The output inside a raw response body; an empty :class:`Output` for unknown shapes.

    ``surface`` is accepted for callers that know it; the shape of the body decides. Of several
    choices the first is returned.
    """
    found = bodies.outputs(response)
    return found[0] if found else Output()
