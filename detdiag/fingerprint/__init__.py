"""What ran: weights, tokenizer, template, configuration and stack, read from files. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detdiag.evidence.finding import Finding


def fingerprint_model(model: Path | None, *, threads: int | None = None) -> dict[str, Any]:
    """Fingerprint of a model folder (or weight file) and this machine; None: the machine alone.

    Raises :class:`~detdiag.errors.DetdiagError` naming file and tensor for a broken checkpoint.
    """
    from detdiag.fingerprint.collect import fingerprint

    return fingerprint(model, threads=threads)


def fingerprint_findings(
    a: Mapping[str, Any], b: Mapping[str, Any], *, mechanism: bool = False
) -> list[Finding]:
    """See :func:`detdiag.fingerprint.findings.fingerprint_findings`."""
    from detdiag.fingerprint.findings import fingerprint_findings as compare

    return compare(a, b, mechanism=mechanism)
