"""Request bodies and model files in JSON, alone or one a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from detdiag.audit import jsontext
from detdiag.audit.document import Document, fixed_line, launch_document
from detdiag.audit.infer import infer_request, is_generation_config, surface_of_url
from detdiag.audit.launch import (
    find_launch,
)
from detdiag.audit.shellwords import Word
from detdiag.audit.surfaces import SURFACES
from detdiag.errors import DetdiagError

_MANIFEST_KEYS: Final = frozenset(
    "apiVersion spec services containers image command args entrypoint vllmConfig items".split()
)


def json_documents(name: str, base: str, text: str) -> list[Document]:
    """The documents of one JSON text: a body, a manifest, or an argument list."""
    body = jsontext.parse(text, name)
    locate = partial(jsontext.line_of, text)
    if isinstance(body, list) and body and all(isinstance(item, str) for item in body):
        return _argument_list(name, body, text)
    if not isinstance(body, dict):
        raise DetdiagError("holds no JSON object", path=name, tip="expected a request body")
    if _MANIFEST_KEYS & set(body) and not {"messages", "prompt", "contents"} & set(body):
        from detdiag.audit.manifests import yaml_documents

        starts = [doc for doc in yaml_documents(name, text, None) if doc.role == "launch"]
        if starts:
            return starts
    return [body_document(name, base, body, text, locate)]


def body_document(
    name: str, base: str, body: Mapping[str, Any], text: str, locate: Any, format_: str = "json"
) -> Document:
    """The document that a parsed object is, by file name first and content second."""
    make = partial(Document, name, text=text, locate=locate, format=format_)
    if base == "intent.json":
        return make("intent", None, body)
    if base == "generation_config.json" or (
        not base.startswith("request") and is_generation_config(body)
    ):
        return make("model_file", "hf.generation_config", body, said=True)
    if base == "generate_kwargs.json":
        return make("call", "hf.generate_kwargs", body, said=True)
    url = body.get("url") or body.get("endpoint")
    inner = body.get("body", body.get("request", body.get("json")))
    if isinstance(inner, dict) and not {"messages", "prompt", "contents"} & set(body):
        surface = surface_of_url(url) if isinstance(url, str) else None
        guess, candidates = (surface, ()) if surface else infer_request(inner)
        key = next(k for k in ("body", "request", "json") if body.get(k) is inner)
        version = api_version(str(url or ""), body)
        return make(
            "request",
            guess,
            inner,
            said=guess is not None,
            candidates=candidates,
            version=version,
            prefix=(key,),
        )
    if isinstance(body.get("choices"), list) and "messages" not in body:
        return make("response", response_surface(body), body, said=True)
    surface, candidates = infer_request(body)
    role = "request" if surface is None else SURFACES[surface].role
    return make(role, surface, body, said=surface is not None, candidates=candidates)


def response_surface(body: Mapping[str, Any]) -> str:
    """Whose answer a chat completion is, by its fingerprint."""
    fingerprint = str(body.get("system_fingerprint", ""))
    if fingerprint == "fp_ollama":
        return "ollama.openai_response"
    return "vllm.openai_response" if fingerprint.startswith("vllm-") else "openai.chat"


def api_version(url: str, envelope: Mapping[str, Any]) -> str | None:
    """The API version that a URL or the headers of an envelope name."""
    match = re.search(r"[?&]api-version=([\w.-]+)", url)
    if match:
        return match.group(1)
    headers = envelope.get("headers")
    if isinstance(headers, dict):
        lowered = {str(k).lower(): v for k, v in headers.items()}
        for key in ("anthropic-version", "api-version"):
            if isinstance(lowered.get(key), str):
                return str(lowered[key])
    return None


def json_lines(name: str, text: str) -> list[Document]:
    """One document a line."""
    documents: list[Document] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            body = jsontext.parse(line)
        except DetdiagError as error:
            raise DetdiagError(error.message, path=name, line=number) from None
        if isinstance(body, dict):
            here = partial(fixed_line, number)
            document = body_document(name, "line", body, line, here)
            documents.append(document)
    return documents


def _argument_list(name: str, items: list[str], text: str) -> list[Document]:
    words = [Word(item, 0, 0, jsontext.line_of(text, (i,))) for i, item in enumerate(items)]
    launch = find_launch(words)
    return [] if launch is None else [launch_document(name, launch, text, "args")]
