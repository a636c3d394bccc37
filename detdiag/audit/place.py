"""Give every document its surface: its own word, the engine beside it, or what the user says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from detdiag.audit.document import Document, launch_document
from detdiag.audit.launch import LAUNCH_SURFACES, EnvVar, make_launch
from detdiag.audit.shellwords import Word
from detdiag.audit.surfaces import SURFACES, Surface, request_surface
from detdiag.errors import DetdiagError


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
    spoken = [speak(doc, surface) for doc in documents]
    engine = next(
        (
            SURFACES[doc.surface].engine
            for doc in spoken
            if doc.surface
            and doc.role in ("launch", "env", "modelfile")
            and SURFACES[doc.surface].engine not in ("torch", "any")
        ),
        None,
    )
    return [_join(doc, engine) for doc in spoken]


def speak(doc: Document, surface: str | None) -> Document:
    """The document as ``surface`` says it is, unless its content says so itself."""
    if doc.role == "intent":
        return doc
    if surface is None:
        return doc
    wanted = SURFACES[surface]
    if doc.role == "response":
        return replace(doc, surface=surface)
    if doc.role == "flags":
        return _bare_flags(doc, wanted)
    if (
        doc.role == "model_file"
        and wanted.role != "model_file"
        and doc.path.endswith("generation_config.json")
    ):
        return doc
    if doc.said and doc.role in ("launch", "env", "modelfile", "call"):
        if doc.role == "call" and wanted.role == "call":
            return replace(doc, surface=surface)
        return (
            doc
            if doc.role != "call" or doc.path.endswith("generate_kwargs.json")
            else replace(doc, surface=surface, role=wanted.role)
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
    words: list[Word] = []
    env: dict[str, EnvVar] = {}
    for key, value in doc.data.items():
        if value is None:
            continue
        if key in ("env", "environment") and isinstance(value, Mapping):
            for name, text in value.items():
                shown = str(text).lower() if isinstance(text, bool) else str(text)
                env[str(name)] = EnvVar(shown, doc.locate((key, str(name))))
            continue
        if str(key).isupper():
            env[str(key)] = EnvVar(str(value), doc.locate((key,)))
            continue
        line = doc.locate((key,))
        words.append(Word(f"--{key}", 0, 0, line))
        if value is False:
            words[-1] = Word(f"--{key}=false", 0, 0, line)
        elif value is not True:
            text = value if isinstance(value, str) else json.dumps(value)
            words[-1] = Word(f"--{key}={text}", 0, 0, line)
    launch = make_launch(wanted.engine, words, env, None, None)
    return launch_document(doc.path, launch, doc.text, "mapping")


def _join(doc: Document, engine: str | None) -> Document:
    """A request whose surface is not unique belongs to the engine that is launched beside it."""
    if doc.role == "request" and engine is not None:
        if doc.surface is None:
            return replace(doc, surface=request_surface(engine, doc.data).name)
        return doc
    return doc
