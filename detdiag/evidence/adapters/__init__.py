"""Logs that other tools wrote, turned into observations. One file a format, found by content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detdiag.evidence.adapters import bodies
from detdiag.evidence.adapters.factors import prompt_token_ids, response_factors
from detdiag.evidence.adapters.interface import Adapted, Adapter, Exchange
from detdiag.evidence.adapters.lacks import untested_layers
from detdiag.evidence.adapters.read import read_evidence, read_files
from detdiag.evidence.adapters.recognise import describe, why_ignored
from detdiag.evidence.adapters.registry import ADAPTERS
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
    "read_files",
    "response_factors",
    "untested_layers",
    "why_ignored",
]


def adapt_response(response: Mapping[str, Any] | Any, surface: str | None = None) -> Output:
    """The output inside a raw response body; an empty :class:`Output` for unknown shapes.

    ``surface`` is accepted for callers that know it; the shape of the body decides. Of several
    choices the first is returned.
    """
    found = bodies.outputs(response)
    return found[0] if found else Output()
