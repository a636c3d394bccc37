"""Shell text: server starts, captured requests (curl), settings under a header."""

from __future__ import annotations

import re
from functools import partial
from pathlib import PurePath
from typing import Any

from detdiag.audit import jsontext
from detdiag.audit.document import Document, fixed_line, launch_document
from detdiag.audit.infer import infer_request, surface_of_url
from detdiag.audit.launch import (
    LAUNCH_SURFACES,
    EnvVar,
    find_launch,
    make_launch,
    split_env,
)
from detdiag.audit.read_env import env_documents
from detdiag.audit.read_json import api_version
from detdiag.audit.shellwords import Word, parse_commands
from detdiag.audit.surfaces import LAUNCHABLE, SURFACES
from detdiag.errors import DetdiagError


def shell_documents(
    name: str, text: str, header: str | None, *, explicit: bool = True
) -> list[Document]:
    """Server starts and captured requests (curl) of a shell text."""
    settings = _settings(name, text, header)
    if settings is not None:
        return [settings]
    for directive in ("ExecStart=", "Environment="):  # systemd units; same length, same places
        text = text.replace(directive, " " * len(directive))
    commands = parse_commands(text, name)
    documents: list[Document] = []
    exported: dict[str, EnvVar] = {}
    for words in commands:
        env, rest = split_env(words)
        if not rest:
            exported.update(env)
            continue
        launch = find_launch(words, exported)
        if launch is not None:
            documents.append(launch_document(name, launch, text, "shell"))
            continue
        request = _curl(name, rest)
        if request is not None:
            documents.append(request)
    engine = SURFACES[header].engine if header else None
    if not documents and engine in LAUNCH_SURFACES and _launchable(header):
        words = [word for command in commands for word in command]
        env, rest = split_env(words)
        launch = make_launch(str(engine), rest, env, None, None)
        documents.append(launch_document(name, launch, text, "shell"))
    if not documents and exported:
        return env_documents(name, text, header)
    if (
        not documents
        and explicit
        and any(word.text.startswith("--") for words in commands for word in words)
    ):
        bare = [word for words in commands for word in words]
        documents.append(
            Document(
                name,
                "flags",
                None,
                {"words": bare},
                format="shell",
                text=text,
                candidates=tuple(LAUNCH_SURFACES.values()),
            )
        )
    return documents


def _settings(name: str, text: str, header: str | None) -> Document | None:
    """``name: value`` or ``name=value`` lines under a header that names no launch line."""
    if header is None or SURFACES[header].role == "launch" or re.search(r"(^|\s)--?\w", text):
        return None
    body: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        match = re.match(r"^\s*([A-Za-z_]\w*)\s*[:=]\s*(.*?)\s*$", line)
        if match:
            body[match.group(1)] = _plain_value(match.group(2))
            lines[match.group(1)] = number
    if not body:
        return None
    return Document(
        name,
        SURFACES[header].role,
        header,
        body,
        said=True,
        format="settings",
        text=text,
        locate=lambda path: lines.get(str(path[0]), 1) if path else 1,
    )


def _plain_value(text: str) -> Any:
    try:
        return jsontext.parse(text)
    except DetdiagError:
        lowered = text.lower()
        return {"true": True, "false": False, "none": None}.get(lowered, text.strip("'\""))


def _launchable(surface: str | None) -> bool:
    return surface is not None and (SURFACES[surface].role == "launch" or surface in LAUNCHABLE)


def _curl(name: str, words: list[Word]) -> Document | None:
    if not words or PurePath(words[0].text).name != "curl":
        return None
    url = next((w.text for w in words if w.text.startswith(("http://", "https://"))), "")
    for index, word in enumerate(words[:-1]):
        if word.text in ("-d", "--data", "--data-raw", "--data-binary", "--json"):
            payload = words[index + 1]
            try:
                body = jsontext.parse(payload.text)
            except DetdiagError:
                return None
            if not isinstance(body, dict):
                return None
            surface = surface_of_url(url)
            guess, candidates = (surface, ()) if surface else infer_request(body)
            return Document(
                name,
                "request",
                guess,
                body,
                said=guess is not None,
                candidates=candidates,
                version=api_version(url, {}),
                format="curl",
                text=payload.text,
                locate=partial(fixed_line, payload.line - payload.text.count("\n")),
            )
    return None
