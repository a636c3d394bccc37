"""A folder as deployments: which files are looked at, and which belong together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from detdiag.audit.deployment import AuditResult, audit_documents
from detdiag.audit.document import Document
from detdiag.audit.readers import read_documents
from detdiag.errors import DetdiagError

SKIPPED_DIRS: Final = frozenset(
    ".git .hg .svn node_modules __pycache__ .venv venv .tox .mypy_cache .ruff_cache .pytest_cache "
    "site-packages dist build target .terraform .next".split()
)
_SUFFIXES: Final = (
    ".json",
    ".yaml",
    ".yml",
    ".sh",
    ".bash",
    ".env",
    ".txt",
    ".args",
    ".dockerfile",
    ".modelfile",
    ".service",
    ".cmd",
)
_NAMES: Final = ("dockerfile", "modelfile", ".env", "procfile", "containerfile")
_WORTH_READING: Final = re.compile(
    rb"vllm|sglang|llama|ollama|text-generation|trtllm|tensorrt|lmdeploy|mlc_llm|exllama|"
    rb"temperature|do_sample|top_p|max_tokens|max_new_tokens|\"messages\"|\"contents\"|"
    rb"inferenceConfig|NVIDIA_TF32|TORCH_|TORCHINDUCTOR|CUBLAS_|transformers.{1,3}serve|FORCE_",
    re.IGNORECASE,
)
_CASE_FILE: Final = re.compile(
    r"^(request[\w.-]*\.json|intent\.json|generation_config\.json|generate_kwargs\.json|"
    r"server_args\.txt|modelfile)$",
    re.IGNORECASE,
)
MAX_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Walk:
    """Result of a folder: merged findings, files read and files that could not be read."""

    result: AuditResult
    files: int = 0
    unreadable: list[str] = field(default_factory=list)


def candidate_files(root: Path) -> Iterator[Path]:
    """Files under ``root`` that could configure a model, in a fixed order."""
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in SKIPPED_DIRS)
        for name in sorted(files):
            lowered = name.lower()
            if lowered.endswith(_SUFFIXES) or lowered.startswith(_NAMES):
                yield Path(folder) / name


def audit_folder(
    root: Path, *, surface: str | None = None, engine_version: str | None = None
) -> Walk:
    """Audit every deployment under ``root``. A file that does not parse is listed, not an error."""
    merged = AuditResult()
    unreadable: list[str] = []
    count = 0
    by_folder: dict[Path, list[tuple[Path, list[Document]]]] = {}
    for path in candidate_files(root):
        data = _read(path)
        if data is None:
            continue
        try:
            documents = read_documents(path.as_posix(), data, explicit=False)
        except DetdiagError as error:
            unreadable.append(str(error))
            continue
        count += 1
        by_folder.setdefault(path.parent, []).append((path, documents))
    for entries in by_folder.values():
        for group in _groups(entries):
            found = audit_documents(group, surface=surface, engine_version=engine_version)
            merged.findings.extend(found.findings)
            merged.effective.extend(found.effective)
            merged.documents.extend(found.documents)
    return Walk(merged, count, unreadable)


def _read(path: Path) -> bytes | None:
    try:
        if path.is_symlink() or path.stat().st_size > MAX_BYTES:
            return None
        data = path.read_bytes()
    except OSError:
        return None
    return data if _WORTH_READING.search(data) or _CASE_FILE.match(path.name) else None


def _groups(entries: list[tuple[Path, list[Document]]]) -> Iterator[list[Document]]:
    """Case files of one folder resolve together; every other file speaks for itself, with the
    env files beside it."""
    case = [doc for path, docs in entries if _CASE_FILE.match(path.name) for doc in docs]
    roles = {doc.role for doc in case}
    together = len(case) > 1 and roles & {"request", "call", "launch", "intent"}
    if case and together:
        yield case
    env = [doc for path, docs in entries for doc in docs if doc.role == "env"]
    launched = False
    for path, docs in entries:
        if together and _CASE_FILE.match(path.name):
            continue
        for doc in docs:
            if doc.role == "launch":
                launched = True
                yield [doc, *env]
            elif doc.role != "env" and _ours(doc):
                yield [doc]
    if env and not launched:
        yield env


def _ours(doc: Document) -> bool:
    """In a repository a stray JSON is ours only if it is plainly a request or a known file."""
    if doc.role == "intent":
        return False
    if doc.role == "request" and doc.surface is None:
        return bool({"messages", "prompt"} & set(doc.data)) and "model" in doc.data
    return doc.role != "flags"
