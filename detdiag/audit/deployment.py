"""One deployment: the files of one call resolved together, and the findings on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from detdiag.audit.document import Document
from detdiag.audit.engines import Inputs
from detdiag.audit.evaluate import Unit, audit_unit
from detdiag.audit.facts import RequestView, surroundings, view_request
from detdiag.audit.flags import read_flags
from detdiag.audit.intent import compare_intent
from detdiag.audit.launch import LAUNCH_SURFACES, make_launch
from detdiag.audit.readers import launch_document, read_documents
from detdiag.audit.surfaces import LAUNCHABLE, SURFACES, Surface, request_surface
from detdiag.errors import DetdiagError
from detdiag.evidence.finding import Finding
from detdiag.rules.versions import OLDEST, version_key

_EMPTY = RequestView({}, {})


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
    """Findings on one request body alone; without a surface only what holds everywhere."""
    document = Document(where, "request", None, request, locate=lambda path: 1)
    return audit_documents([document], surface=surface, engine_version=engine_version).findings


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
    for launch in _launches(placed):
        for unit in _units(placed, launch, surface):
            unit.extras.update({**extras, **unit.extras})
            version = engine_version or _said_version(unit.documents)
            outcome = audit_unit(unit, version)
            result.findings.extend(outcome.findings)
            result.effective.extend(outcome.effective)
    result.findings.extend(_intent_findings(placed))
    result.unplaced.extend(
        (doc.path, doc.candidates) for doc in placed if doc.surface is None and doc.role != "intent"
    )
    return replace(result, findings=_ordered(result.findings))


def check_surface(name: str) -> None:
    """Raise :class:`DetdiagError` unless ``name`` is a known surface."""
    if name in SURFACES:
        return
    import difflib

    close = difflib.get_close_matches(name, list(SURFACES), n=1, cutoff=0.4)
    tip = f"did you mean {close[0]}?" if close else "one of " + ", ".join(sorted(SURFACES))
    raise DetdiagError(f"unknown surface {name!r}", tip=tip)


def place(documents: Sequence[Document], surface: str | None) -> list[Document]:
    """Give every document a surface: its own word, then the engine beside it, then ``surface``."""
    spoken = [_speak(doc, surface) for doc in documents]
    engine = next(
        (SURFACES[doc.surface].engine for doc in spoken
         if doc.surface and doc.role in ("launch", "env", "modelfile")
         and SURFACES[doc.surface].engine not in ("torch", "any")),
        None,
    )
    return [_join(doc, engine) for doc in spoken]


def _speak(doc: Document, surface: str | None) -> Document:
    if doc.role == "intent":
        return doc
    if surface is None:
        return doc
    wanted = SURFACES[surface]
    if doc.role == "response":
        return replace(doc, surface=surface)
    if doc.role == "flags":
        return _bare_flags(doc, wanted)
    if doc.role == "model_file" and wanted.role != "model_file" and doc.path.endswith(
        "generation_config.json"
    ):
        return doc
    if doc.said and doc.role in ("launch", "env", "modelfile", "call"):
        if doc.role == "call" and wanted.role == "call":
            return replace(doc, surface=surface)
        return doc if doc.role != "call" or doc.path.endswith("generate_kwargs.json") else replace(
            doc, surface=surface, role=wanted.role
        )
    if wanted.role == "launch" and isinstance(doc.data, Mapping):
        return _mapping_or_request(doc, wanted)
    return replace(doc, surface=surface, role=wanted.role)


def _bare_flags(doc: Document, wanted: Surface) -> Document:
    if wanted.engine not in LAUNCH_SURFACES:
        return doc
    launch = make_launch(wanted.engine, doc.data["words"], {}, None, None)
    return launch_document(doc.path, launch, doc.text, doc.format)


def _mapping_or_request(doc: Document, wanted: Surface) -> Document:
    """A JSON or YAML mapping under a launch surface: a request if it looks like one, else flags."""
    if {"messages", "prompt", "contents", "inputs", "input", "text"} & set(doc.data):
        target = request_surface(wanted.engine, doc.data)
        return replace(doc, surface=target.name, role="request")
    from detdiag.audit.shellwords import Word

    words: list[Word] = []
    for key, value in doc.data.items():
        if value is None:
            continue
        line = doc.locate((key,))
        words.append(Word(f"--{key}", 0, 0, line))
        if value is False:
            words[-1] = Word(f"--{key}=false", 0, 0, line)
        elif value is not True:
            import json

            text = value if isinstance(value, str) else json.dumps(value)
            words[-1] = Word(f"--{key}={text}", 0, 0, line)
    launch = make_launch(wanted.engine, words, {}, None, None)
    return launch_document(doc.path, launch, doc.text, "mapping")


def _join(doc: Document, engine: str | None) -> Document:
    """A request whose surface is not unique belongs to the engine that is launched beside it."""
    if doc.role == "request" and engine is not None:
        if doc.surface is None:
            return replace(doc, surface=request_surface(engine, doc.data).name)
        return doc
    return doc


def _launches(documents: Sequence[Document]) -> list[Document | None]:
    launches: list[Document | None] = [
        doc for doc in documents if doc.role in ("launch", "env") and doc.surface != "torch.env"
    ]
    merged = _merge_env(launches)
    return merged or [None]


def _merge_env(launches: list[Document | None]) -> list[Document | None]:
    """Variables of an env file belong to the launch line of the same engine beside it."""
    lines = [doc for doc in launches if doc is not None and doc.role == "launch"]
    if not lines:
        return launches
    extra = {
        name: var
        for doc in launches
        if doc is not None and doc.role == "env" and doc.launch is not None
        for name, var in doc.launch.env.items()
    }
    return [
        replace(doc, launch=replace(doc.launch, env={**extra, **doc.launch.env}))
        for doc in lines
        if doc.launch is not None
    ]


def _units(
    documents: Sequence[Document], launch: Document | None, surface: str | None
) -> list[Unit]:
    requests = [doc for doc in documents if doc.role in ("request", "response", "settings")]
    around = {
        role: next((doc for doc in documents if doc.role == role), None)
        for role in ("model_file", "call", "modelfile")
    }
    shared = {role: doc for role, doc in around.items() if doc is not None}
    if launch is not None:
        shared["launch"] = launch
    units = [_request_unit(doc, shared) for doc in requests]
    _mark_mixed(units)
    if not units:
        units = [unit for unit in (_bare_unit(shared, surface),) if unit is not None]
    units.extend(_torch_units(documents))
    return units


def _torch_units(documents: Sequence[Document]) -> list[Unit]:
    units = []
    for doc in documents:
        if doc.role == "env" and doc.surface == "torch.env":
            base = Inputs("torch.env", OLDEST, env={k: str(v) for k, v in doc.data.items()})
            units.append(
                Unit(("torch.env",), SURFACES["torch.env"], "torch", {"launch": doc}, _EMPTY, base)
            )
    return units


def _request_unit(doc: Document, shared: Mapping[str, Document]) -> Unit:
    own = SURFACES[doc.surface or "any.request"]
    view = view_request(own, doc.data)
    documents = {"request": doc, **shared}
    names = [own.name, *own.also]
    launch = shared.get("launch")
    if launch is not None and launch.surface is not None:
        side = SURFACES[launch.surface]
        names.extend(n for n in (side.name, *side.also) if n not in names)
    base = _inputs(own, documents, view, has_request=doc.role == "request")
    return Unit(tuple(dict.fromkeys(names)), own, own.engine, documents, view, base)


def _bare_unit(shared: Mapping[str, Document], surface: str | None) -> Unit | None:
    """A unit without a request: a launch line, a Modelfile, or transformers' own files."""
    launch = shared.get("launch")
    if launch is not None and launch.surface is not None:
        own = SURFACES[launch.surface]
    elif "modelfile" in shared:
        own = SURFACES["ollama.modelfile"]
    elif "call" in shared:
        own = SURFACES[shared["call"].surface or "hf.generate_kwargs"]
    elif "model_file" in shared:
        own = SURFACES["hf.generation_config"]
        if surface is not None and SURFACES[surface].engine != "hf":
            own = SURFACES[surface]
    else:
        return None
    names = tuple(dict.fromkeys((own.name, *own.also, *_asked(surface, own))))
    return Unit(
        names, own, own.engine, shared, _EMPTY, _inputs(own, shared, _EMPTY, has_request=False)
    )


def _asked(surface: str | None, own: Surface) -> tuple[str, ...]:
    """The surface asked for, where it belongs to the same engine and is no request."""
    if surface is None or SURFACES[surface].engine != own.engine:
        return ()
    return (surface,) if SURFACES[surface].role == "launch" else ()


def _inputs(
    own: Surface, documents: Mapping[str, Document], view: RequestView, *, has_request: bool
) -> Inputs:
    launch = documents.get("launch")
    start = None if launch is None else launch.launch
    call = dict(documents["call"].data) if "call" in documents else {}
    passed = call.get("generation_config")
    request = documents.get("request")
    return Inputs(
        surface=own.name,
        key=OLDEST,
        request=view.common(own),
        body={} if request is None else request.data,
        call={k: v for k, v in call.items() if k != "generation_config"},
        passed=passed if isinstance(passed, Mapping) else None,
        file=documents["model_file"].data if "model_file" in documents else None,
        flags={} if start is None else {name: flag.value for name, flag in start.flags.items()},
        env={} if start is None else {name: var.value for name, var in start.env.items()},
        modelfile=_modelfile_common(documents.get("modelfile")),
        has_request=has_request,
        has_launch=launch is not None and launch.role == "launch",
    )


def _modelfile_common(document: Document | None) -> dict[str, Any] | None:
    if document is None:
        return None
    names = {own: common for common, own in SURFACES["ollama.modelfile"].spelling.items()}
    return {names.get(key, key): value for key, value in document.data.items()}


def _mark_mixed(units: list[Unit]) -> None:
    """Requests of one server, one greedy and one sampled: their rows can share a batch."""
    from detdiag.rules.condition import number

    values = [number(unit.base.request.get("temperature")) for unit in units]
    if any(v is not None and v < 1e-5 for v in values) and any(v is None or v >= 1e-5 for v in values):
        for unit in units:
            unit.extras["mixed"] = True


def _said_version(documents: Mapping[str, Document]) -> str | None:
    for role in ("launch", "request"):
        document = documents.get(role)
        if document is not None and document.version:
            try:
                version_key(document.version)
            except DetdiagError:
                continue
            return document.version
    return None


def _intent_findings(documents: Sequence[Document]) -> list[Finding]:
    intents = [doc for doc in documents if doc.role == "intent"]
    requests = [doc for doc in documents if doc.role in ("request", "call")]
    return [
        finding for intent in intents for request in requests
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


__all__ = ["AuditResult", "LAUNCHABLE", "audit_documents", "audit_files", "audit_request",
           "read_flags"]
