"""One deployment: the files of one call resolved together, and the findings on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from detdiag.audit.document import Document
from detdiag.audit.evaluate import audit_unit
from detdiag.audit.facts import surroundings
from detdiag.audit.intent import compare_intent
from detdiag.audit.place import check_surface, place
from detdiag.audit.readers import read_documents
from detdiag.audit.surfaces import SURFACES, request_surface
from detdiag.audit.units import launches_of, said_version, units_of
from detdiag.errors import DetdiagError
from detdiag.evidence.finding import Finding
from detdiag.rules.versions import version_key


@dataclass(frozen=True, slots=True)
class AuditResult:
    """``findings`` in the order of severity; ``effective`` is the parameter table
    (surface, parameter, value, origin, ignored, and note or versions where they apply);
    ``unplaced`` names documents whose surface is not known, with their candidates."""

    findings: list[Finding] = field(default_factory=list)
    effective: list[dict[str, Any]] = field(default_factory=list)
    unplaced: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)


def audit_files(
    files: Sequence[Path] | Mapping[str, bytes],
    *,
    surface: str | None = None,
    engine_version: str | None = None,
) -> AuditResult:
    """Audit the files of one call as one deployment.

    ``files`` are paths, or contents by file name. ``surface`` speaks for the files that do not
    say themselves. Raises :class:`DetdiagError` on a file that cannot be read, an unknown
    surface or an unreadable version.
    """
    contents = files if isinstance(files, Mapping) else {str(p): _read(p) for p in files}
    documents = [doc for name, data in contents.items() for doc in read_documents(name, data)]
    return audit_documents(documents, surface=surface, engine_version=engine_version)


def _read(path: Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DetdiagError(error.strerror or "cannot be read", path=path) from None


def audit_request(
    request: Mapping[str, Any],
    surface: str | None,
    *,
    engine_version: str | None = None,
    where: str = "request",
) -> list[Finding]:
    """Findings on one request body alone; without a known surface only what holds everywhere."""
    known = SURFACES.get(surface or "")
    if known is not None and known.role != "request":
        known = request_surface(known.engine, request)
    document = Document(
        where, "request", None if known is None else known.name, request, said=known is not None
    )
    return audit_documents([document], engine_version=engine_version).findings


def audit_documents(
    documents: Sequence[Document],
    *,
    surface: str | None = None,
    engine_version: str | None = None,
) -> AuditResult:
    """Audit already read documents as one deployment."""
    if surface is not None:
        check_surface(surface)
    if engine_version is not None:
        version_key(engine_version)
    placed = place(documents, surface)
    extras = surroundings(placed)
    result = AuditResult(documents=list(placed))
    for launch in launches_of(placed):
        for unit in units_of(placed, launch, surface):
            unit.extras.update({**extras, **unit.extras})
            version = engine_version or said_version(unit.documents)
            outcome = audit_unit(unit, version)
            result.findings.extend(outcome.findings)
            result.effective.extend(outcome.effective)
    result.findings.extend(_intent_findings(placed))
    result.unplaced.extend(
        (doc.path, doc.candidates) for doc in placed if doc.surface is None and doc.role != "intent"
    )
    return replace(result, findings=_ordered(result.findings))


def _intent_findings(documents: Sequence[Document]) -> list[Finding]:
    intents = [doc for doc in documents if doc.role == "intent"]
    requests = [doc for doc in documents if doc.role in ("request", "call")]
    return [
        finding
        for intent in intents
        for request in requests
        for finding in compare_intent(intent, request)
    ]


_RANK = {"high": 0, "medium": 1, "low": 2, "info": 3}
_OUTCOME_RANK = {"failed": 0, "inconclusive": 1, "passed": 2}


def _ordered(findings: Sequence[Finding]) -> list[Finding]:
    """Strongest first; one finding per rule, subject and place."""
    unique: dict[tuple[Any, ...], Finding] = {}
    for finding in findings:
        key = (finding.data.get("rule_id", finding.rule), finding.subject, finding.where)
        unique.setdefault(key, finding)
    return sorted(
        unique.values(),
        key=lambda f: (_OUTCOME_RANK.get(f.outcome, 3), _RANK[f.severity]),
    )
