"""Turn one file into documents: by its name, its first line and its content."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from detdiag.audit import jsontext
from detdiag.audit.document import Document
from detdiag.audit.read_env import env_documents, is_env
from detdiag.audit.read_json import json_documents, json_lines
from detdiag.audit.read_shell import shell_documents
from detdiag.audit.surfaces import SURFACES
from detdiag.errors import DetdiagError

_HEADER = re.compile(r"^\ufeff?\s*(?:#|//)\s*surface:\s*([\w.]+)\s*$")
_MODELFILE_LINE = re.compile(r"^\s*PARAMETER\s+\S+", re.IGNORECASE | re.MULTILINE)


def read_documents(name: str, data: bytes, *, explicit: bool = True) -> list[Document]:
    """Documents of one file; raises :class:`DetdiagError` on what cannot be read.

    ``explicit`` is False in a folder walk, where a file that says nothing is simply not ours.
    """
    text = _decode(name, data)
    header = header_surface(text)
    if header is not None and header not in SURFACES:
        raise _unknown_surface(name, header)
    base = PurePath(name).name.lower()
    stripped = text.lstrip("\ufeff \t\r\n")
    if base.endswith((".jsonl", ".ndjson")):
        return json_lines(name, text)
    if base.endswith(".json") or (stripped[:1] in ("{", "[") and _parses(text)):
        return json_documents(name, base, text)
    if base.endswith((".yaml", ".yml")):
        from detdiag.audit.manifests import yaml_documents

        return yaml_documents(name, text, header)
    if _is_modelfile(base, text):
        return [_modelfile(name, text)]
    if base == "dockerfile" or base.startswith("dockerfile.") or base.endswith(".dockerfile"):
        from detdiag.audit.dockerfile import dockerfile_documents

        return dockerfile_documents(name, text)
    if base == ".env" or base.startswith(".env.") or base.endswith(".env") or is_env(text):
        return env_documents(name, text, header)
    return shell_documents(name, text, header, explicit=explicit)


def _parses(text: str) -> bool:
    """Whether a text without the extension is JSON all the same (``[Service]`` is not)."""
    try:
        return isinstance(jsontext.parse(text), (dict, list))
    except DetdiagError:
        return False


def _decode(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DetdiagError(
            f"not UTF-8 (byte 0x{data[error.start]:02x})", path=name, line=line
        ) from None


def header_surface(text: str) -> str | None:
    """The surface named by a first line ``# surface: NAME``."""
    match = _HEADER.match(text.split("\n", 1)[0])
    return None if match is None else match.group(1)


def _unknown_surface(name: str, surface: str) -> DetdiagError:
    import difflib

    close = difflib.get_close_matches(surface, list(SURFACES), n=1, cutoff=0.5)
    tip = f"did you mean {close[0]}?" if close else "see detdiag explain --list"
    return DetdiagError(f"unknown surface {surface!r}", path=name, line=1, tip=tip)


def _is_modelfile(base: str, text: str) -> bool:
    if base == "modelfile" or base.endswith(".modelfile") or base.startswith("modelfile."):
        return True
    return bool(_MODELFILE_LINE.search(text)) and bool(re.search(r"^FROM\s", text, re.MULTILINE))


def _modelfile(name: str, text: str) -> Document:
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    fence = False
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.split(None, 2)
        if line.count('"""') % 2:
            fence = not fence
        if fence or len(parts) < 3 or parts[0].upper() != "PARAMETER":
            continue
        key, value = parts[1].lower(), parts[2].strip().strip('"')
        values[key] = value
        lines[key] = number
    return Document(
        name,
        "modelfile",
        "ollama.modelfile",
        values,
        said=True,
        format="modelfile",
        text=text,
        locate=lambda path: lines.get(str(path[0]), 1) if path else 1,
    )
