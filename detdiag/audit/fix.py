"""Corrected files: the rules' own edits, applied until the audit has nothing more to change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from detdiag.audit.deployment import AuditResult, audit_documents
from detdiag.audit.document import Document
from detdiag.audit.edit_json import remove, set_value
from detdiag.audit.edit_launch import add_shell_env, set_env_on_line, set_list_flag, set_shell_flag
from detdiag.audit.facts import view_request
from detdiag.audit.readers import read_documents
from detdiag.audit.surfaces import SURFACES
from detdiag.errors import DetdiagError
from detdiag.evidence.finding import Finding

ROUNDS: Final = 40
_ONE_FOR_ALL: Final = (
    "VLLM_BATCH_INVARIANT",
    "--enable-deterministic-inference",
    "FORCE_DETERMINISTIC",
)
"""Switches that make several narrower ones unnecessary."""
_PRIORITY: Final = ("call", "request", "modelfile", "file", "arg", "env")
_ROLE: Final = {
    "call": "call",
    "object": "call",
    "request": "request",
    "body": "request",
    "file": "model_file",
    "modelfile": "modelfile",
    "arg": "launch",
    "env": "launch",
}
_ALWAYS: Final = frozenset({"sampling_still_on", "unsupported_error"})


@dataclass(slots=True)
class Fixed:
    """``texts`` by file name after the edits; ``changes`` in words; ``unplaced`` are edits for
    which no safe place was found; ``left`` are findings of kind sampling_still_on that no edit
    removes."""

    texts: dict[str, str]
    changes: list[str] = field(default_factory=list)
    unplaced: list[str] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)


def fix_files(
    texts: Mapping[str, str],
    *,
    surface: str | None = None,
    engine_version: str | None = None,
    harden: bool = False,
) -> Fixed:
    """Apply the edits of the rules to ``texts`` (one deployment).

    ``harden`` also sets the switches against batch dependence, which cost speed.
    """
    fixed = Fixed(dict(texts))
    done: set[tuple[str, str]] = set()
    for _ in range(ROUNDS):
        result = _audit(fixed.texts, surface, engine_version)
        wanted = [f for f in result.findings if _wanted(f, harden, done)]
        if not wanted:
            break
        finding = min(wanted, key=_order)
        done.add(_key(finding))
        _apply(finding, result.documents, fixed)
    fixed.left = [
        f
        for f in _audit(fixed.texts, surface, engine_version).findings
        if f.kind == "sampling_still_on"
    ]
    return fixed


def _audit(texts: Mapping[str, str], surface: str | None, version: str | None) -> AuditResult:
    documents = [doc for name, text in texts.items() for doc in read_documents(name, text.encode())]
    return audit_documents(documents, surface=surface, engine_version=version)


def _key(finding: Finding) -> tuple[str, str]:
    return str(finding.data.get("rule_id")), str(finding.subject)


def _order(finding: Finding) -> tuple[bool, bool, bool]:
    """First what samples, then the switches that make others unnecessary; of two findings with
    one edit the one that is about the edited field."""
    edited = {name.rpartition(".")[2] for name in finding.data["edits"]}
    return (
        finding.kind != "sampling_still_on",
        finding.subject not in _ONE_FOR_ALL,
        str(finding.subject).lstrip("-") not in edited,
    )


def _wanted(finding: Finding, harden: bool, done: set[tuple[str, str]]) -> bool:
    if not finding.data.get("edits") or _key(finding) in done or finding.kind == "ok":
        return False
    if finding.severity == "info":  # a hypothesis changes nobody's file
        return False
    if finding.kind in _ALWAYS or (
        finding.kind == "ignored_parameter"
        and finding.severity == "high"
        and finding.outcome == "failed"
    ):
        return True
    if finding.kind == "unspecified_default":
        return harden or finding.subject in ("temperature", "do_sample")
    return harden and finding.kind == "breaks_batch_invariance"


def _apply(finding: Finding, documents: list[Document], fixed: Fixed) -> None:
    """The edits of the foremost field space that has a document; removals wherever they apply."""
    edits = dict(finding.data["edits"])
    by_space: dict[str, list[tuple[str, Any]]] = {}
    for name, value in edits.items():
        space = {"body": "request", "object": "call"}.get(
            name.partition(".")[0], name.partition(".")[0]
        )
        by_space.setdefault(space, []).append((name, value))
    chosen = next(
        (
            s
            for s in _PRIORITY
            if s in by_space
            and _document(documents, s) is not None
            and any(v is not None for _, v in by_space[s])
        ),
        None,
    )
    for space, items in by_space.items():
        for name, value in items:
            if space == chosen or value is None:
                _edit(name, value, finding, documents, fixed)


def _document(documents: list[Document], space: str) -> Document | None:
    role = _ROLE[space]
    found = [d for d in documents if d.role == role]
    if not found and role == "launch":
        found = [d for d in documents if d.role == "env" and space == "env"]
    return found[0] if found else None


def _edit(name: str, value: Any, finding: Finding, documents: list[Document], fixed: Fixed) -> None:
    space, _, leaf = name.partition(".")
    document = _document(documents, space)
    if document is None:
        return
    before = fixed.texts[document.path]
    after = (
        _edit_launch(document, space, leaf, value, before)
        if space in ("arg", "env")
        else _edit_body(document, space, leaf, value, before)
    )
    if after is None:
        fixed.unplaced.append(f"{document.path}: {name} cannot be set there by itself")
    if after is None or after == before:
        return
    fixed.texts[document.path] = after
    cost = f"; cost: {finding.remedy.cost}" if finding.remedy and finding.remedy.cost else ""
    verb = f"{name} removed" if value is None else f"{name} set to {value!r}"
    fixed.changes.append(
        f"{document.path}: {verb} ({finding.data['rule_id']}: {finding.summary}{cost})"
    )


def _edit_body(document: Document, space: str, leaf: str, value: Any, text: str) -> str | None:
    if space == "modelfile":
        return _edit_modelfile(text, leaf, value)
    path = (*document.prefix, *_body_path(document, space, leaf))
    if document.format == "yaml":
        from detdiag.audit.edit_yaml import edit_value

        return edit_value(text, path, value)
    if document.format != "json":
        return None
    return remove(text, path) if value is None else set_value(text, path, value)


def _body_path(document: Document, space: str, leaf: str) -> tuple[str | int, ...]:
    """Where a request field stands, or belongs: its surface's first container."""
    if space != "request":
        return tuple(leaf.split("."))
    surface = SURFACES[document.surface or "any.request"]
    known = view_request(surface, document.data).paths.get(leaf)
    if known is not None:
        return known
    containers = [c for c in surface.containers if c and isinstance(document.data.get(c), dict)]
    first = containers[0] if containers and "" not in surface.containers else surface.containers[0]
    return (first, leaf) if first else (leaf,)


def _edit_modelfile(text: str, leaf: str, value: Any) -> str:
    pattern = re.compile(
        rf"^(\s*PARAMETER\s+{re.escape(leaf)}\s+).*$", re.IGNORECASE | re.MULTILINE
    )
    if pattern.search(text):
        return pattern.sub(lambda m: m.group(1) + str(value), text)
    end = "" if text.endswith("\n") or not text else "\n"
    return f"{text}{end}PARAMETER {leaf} {value}\n"


def _edit_launch(document: Document, space: str, name: str, value: Any, text: str) -> str | None:
    launch = document.launch
    if launch is None:
        return None
    if space == "env" and name in launch.env and document.format != "yaml":
        return set_env_on_line(text, launch.env[name].line, name, str(value))
    if document.format == "yaml":
        from detdiag.audit.edit_yaml import edit_launch

        return edit_launch(text, document.meta.get("path", ()), launch, space, name, value)
    if document.format == "env":
        return f"{text.rstrip()}\n{name}={value}\n" if space == "env" else None
    if document.format == "shell":
        if space == "env":
            return add_shell_env(text, launch, name, str(value))
        return set_shell_flag(text, launch, name, value)
    if document.format == "dockerfile":
        return _edit_dockerfile(text, document, space, name, value)
    return None


def _edit_dockerfile(
    text: str, document: Document, space: str, name: str, value: Any
) -> str | None:
    import json

    lines = text.split("\n")
    at = next(
        (
            i
            for i in range(len(lines) - 1, -1, -1)
            if re.match(r"\s*(CMD|ENTRYPOINT)\b", lines[i], re.IGNORECASE)
        ),
        None,
    )
    if space == "env":
        lines.insert(len(lines) if at is None else at, f"ENV {name}={value}")
        return "\n".join(lines)
    if at is None or document.launch is None:
        return None
    head, _, rest = lines[at].strip().partition(" ")
    try:
        words = json.loads(rest)
    except ValueError:
        return None
    if not set_list_flag(words, document.launch, name, value):
        return None
    lines[at] = f"{head} {json.dumps(words)}"
    return "\n".join(lines)


def write_fixed(
    result: AuditResult,
    out: Path,
    *,
    surface: str | None = None,
    engine_version: str | None = None,
    harden: bool = False,
) -> Iterator[str]:
    """Write the corrected files and yield one line for every change and every limit."""
    paths = list(dict.fromkeys(doc.path for doc in result.documents if doc.role != "intent"))
    if not paths:
        raise DetdiagError("nothing to fix", path=out)
    texts = {path: Path(path).read_text(encoding="utf-8") for path in paths}
    fixed = fix_files(texts, surface=surface, engine_version=engine_version, harden=harden)
    single = len(paths) == 1 and not out.is_dir()
    if not single:
        out.mkdir(parents=True, exist_ok=True)
    for path in paths:
        target = out if single else out / Path(path).name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(fixed.texts[path], encoding="utf-8")
        yield f"wrote {target}"
    yield from (f"changed {change}" for change in fixed.changes)
    yield from (f"not changed: {edit}" for edit in dict.fromkeys(fixed.unplaced))
    if not fixed.changes:
        yield "changed nothing"
    for finding in fixed.left:
        action = finding.remedy.action if finding.remedy else "nothing greedier is documented"
        yield (
            f"cannot be made greedy: {finding.surface}: {finding.subject}: {finding.summary}; "
            f"documented advice: {action}"
        )
