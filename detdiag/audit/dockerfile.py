"""Dockerfiles: the base image, ENV, and what CMD and ENTRYPOINT start."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any, Final

from detdiag.audit.document import Document
from detdiag.audit.launch import EnvVar, find_launch, image_engine, make_launch
from detdiag.audit.shellwords import Word, parse_commands
from detdiag.errors import DetdiagError

_INSTRUCTION: Final = re.compile(r"^\s*([A-Za-z]+)\s+(.*)$", re.DOTALL)
_PINNED: Final = re.compile(r"\b(vllm|sglang|lmdeploy|transformers)(?:\[[^\]]*\])?==([\w.]+)")


def dockerfile_documents(name: str, text: str) -> list[Document]:
    """The server start that the last stage of a Dockerfile describes, if any."""
    env: dict[str, EnvVar] = {}
    words: dict[str, list[Word]] = {}
    engine: str | None = None
    version: str | None = None
    pins: dict[str, str] = {}
    anchor = Word("", 0, 0, 1)
    for line, kind, rest in _instructions(text):
        if kind == "FROM":
            engine, version = image_engine(rest.split()[0] if rest.split() else "")
            anchor, words = Word(rest, 0, 0, line), {}
        elif kind == "ENV":
            env.update(_env(rest, line))
        elif kind in ("CMD", "ENTRYPOINT"):
            words[kind] = _words(rest, line)
        elif kind == "RUN":
            pins.update(_PINNED.findall(rest))
    command = words.get("ENTRYPOINT", []) + words.get("CMD", [])
    launch = find_launch(command, env) if command else None
    if launch is None and engine is not None and (command or env):
        launch = make_launch(engine, command, env, version, anchor)
    if launch is None:
        return []
    found = version or pins.get({"hf": "transformers"}.get(launch.engine, launch.engine))
    return [
        Document(
            name,
            "launch",
            launch.surface,
            launch=launch,
            said=True,
            version=launch.version or found,
            format="dockerfile",
            text=text,
            locate=partial(_fixed, launch.line),
        )
    ]


def _fixed(line: int, path: Any) -> int:
    return line


def _instructions(text: str) -> list[tuple[int, str, str]]:
    """(line, instruction, argument) with continuations joined."""
    found: list[tuple[int, str, str]] = []
    pending, start = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        if line.lstrip().startswith("#") or (not pending and not line.strip()):
            continue
        start = start or number
        pending += line.rstrip("\r").rstrip("\\") + "\n" if line.rstrip().endswith("\\") else line
        if line.rstrip().endswith("\\"):
            continue
        match = _INSTRUCTION.match(pending)
        if match:
            found.append((start, match.group(1).upper(), match.group(2).strip()))
        pending, start = "", 0
    return found


def _env(rest: str, line: int) -> dict[str, EnvVar]:
    try:
        words = [word for command in parse_commands(rest) for word in command]
    except DetdiagError:
        return {}
    if words and "=" not in words[0].text:
        return {words[0].text: EnvVar(" ".join(w.text for w in words[1:]), line)}
    pairs = [word.text.partition("=") for word in words]
    return {key: EnvVar(value, line) for key, equals, value in pairs if equals}


def _words(rest: str, line: int) -> list[Word]:
    if rest.startswith("["):
        try:
            parts = json.loads(rest)
        except ValueError:
            parts = None
        if isinstance(parts, list):
            return [Word(str(part), 0, 0, line) for part in parts]
    try:
        commands = parse_commands(rest)
    except DetdiagError:
        return []
    return [Word(w.text, 0, 0, line + w.line - 1) for command in commands for w in command]
