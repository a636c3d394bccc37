"""Audits as an engineer meets them: what goes in, what has to be named, what must not be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from detdiag.audit import audit_files
from detdiag.evidence.finding import Finding


@dataclass(frozen=True)
class Audit:
    """``expect`` are (kind, subject) pairs that must be found; ``never`` are kinds (or pairs)
    that must not be."""

    name: str
    files: dict[str, Any]
    expect: tuple[tuple[str, str], ...] = ()
    never: tuple[Any, ...] = ()
    surface: str | None = None
    version: str | None = None


def load_audits() -> list[Audit]:
    """The table ``acceptance.yaml`` beside this file."""
    rows = yaml.safe_load(Path(__file__).with_name("acceptance.yaml").read_text(encoding="utf-8"))
    return [
        Audit(
            row["name"],
            row["files"],
            tuple((kind, subject) for kind, subject in row.get("expect", ())),
            tuple(tuple(bad) if isinstance(bad, list) else bad for bad in row.get("never", ())),
            row.get("surface"),
            row.get("version"),
        )
        for row in rows
    ]


AUDITS = load_audits()


def _bytes(content: Any) -> bytes:
    return (content if isinstance(content, str) else json.dumps(content)).encode()


def _run(audit: Audit) -> list[Finding]:
    files = {name: _bytes(content) for name, content in audit.files.items()}
    return audit_files(files, surface=audit.surface, engine_version=audit.version).findings


@pytest.mark.parametrize("audit", AUDITS, ids=lambda audit: audit.name)
def test_audit(audit: Audit) -> None:
    found = {(f.kind, f.subject) for f in _run(audit)}
    kinds = {kind for kind, _ in found}
    assert [pair for pair in audit.expect if pair not in found] == []
    assert [bad for bad in audit.never if bad in found or bad in kinds] == []


@pytest.mark.parametrize("audit", AUDITS, ids=lambda audit: audit.name)
def test_only_sampling_that_is_certain_accuses(audit: Audit) -> None:
    for finding in _run(audit):
        if finding.outcome == "failed":
            assert finding.severity == "high"
            assert finding.kind in ("sampling_still_on", "ignored_parameter")
