"""Where fingerprints come from: files, reports, records, model folders, this machine, servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detdiag.errors import DetdiagError


@dataclass(frozen=True, slots=True)
class Source:
    """One fingerprint under the name that tables show; ``folder`` where a model lies in one."""

    name: str
    facts: Mapping[str, Any]
    folder: Path | None = None


def of_paths(paths: Sequence[Path], threads: int | None, *, machine: bool = False) -> list[Source]:
    """Fingerprints of files and folders; ``machine`` adds the facts of this one to a folder's."""
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    found = [_located(path) for path in paths]
    return [
        Source(name, load(path, threads, machine=machine), path if path.is_dir() else None)
        for name, path in zip(names, found, strict=True)
    ]


def _located(path: Path) -> Path:
    """``path``, or the cached snapshot where it is a hub id and no file of that name exists."""
    if path.exists() or path.is_absolute() or len(path.parts) > 2 or path.suffix:
        return path
    from detdiag.fingerprint.hub import cached_snapshot

    return cached_snapshot(str(path)) or path


def of_machine() -> Source:
    from detdiag.fingerprint.collect import fingerprint

    return Source("this machine", fingerprint(None))


def of_servers(
    urls: Sequence[str], model: str | None, api_key_env: str | None, headers: Sequence[str]
) -> list[Source]:
    """Fingerprints of live servers, asked one after the other."""
    from detdiag.fingerprint.endpoint import take

    given = dict(_header(text) for text in headers)
    found = take(urls, model=model, api_key_env=api_key_env, headers=given)
    names = [name for name, _ in found]
    twice = len(set(names)) < len(names)  # one address behind a balancer, asked several times
    return [
        Source(f"{name} ({index})" if twice else name, facts)
        for index, (name, facts) in enumerate(found, start=1)
    ]


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise DetdiagError("--header: expected NAME=VALUE")
    return name.strip(), value.strip()


def load(path: Path, threads: int | None = None, *, machine: bool = False) -> Mapping[str, Any]:
    """A fingerprint file, the fingerprint in a report or a record, or that of a model folder.

    Raises :class:`DetdiagError` for anything else.
    """
    from detdiag.fingerprint.collect import fingerprint, model_section
    from detdiag.inputs.compare import read_bytes
    from detdiag.inputs.json_text import parse_json, plain

    if path.is_dir() or path.suffix in (".safetensors", ".gguf", ".bin"):
        take = fingerprint if machine else model_section
        return take(path, threads=threads)
    if path.suffix == ".ndjson":
        from detdiag.evidence.record import read_record

        return read_record(path).fingerprint
    facts = plain(parse_json(read_bytes(path), path))
    if isinstance(facts, dict) and str(facts.get("schema", "")).startswith("detdiag.report/"):
        facts = facts.get("fingerprint")
    if not isinstance(facts, dict):
        raise DetdiagError("expected a JSON object of version facts", path=path)
    return facts
