"""Turn one file into documents: by its name, its first line and its content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import PurePath
from typing import Any, Final

from detdiag.audit import jsontext
from detdiag.audit.document import Document
from detdiag.audit.infer import infer_request, is_generation_config, surface_of_url
from detdiag.audit.launch import (
    LAUNCH_SURFACES,
    EnvVar,
    Launch,
    find_launch,
    make_launch,
    split_env,
)
from detdiag.audit.shellwords import Word, parse_commands
from detdiag.audit.surfaces import LAUNCHABLE, SURFACES
from detdiag.errors import DetdiagError
from detdiag.rules.yamltext import YamlDocument, parse_yaml

_HEADER = re.compile(r"^\ufeff?\s*(?:#|//)\s*surface:\s*([\w.]+)\s*$")
_ENV_LINE = re.compile(r"^\s*(?:export\s+)?[A-Za-z_][A-Za-z0-9_]*\s*=")
_ENV_ONLY = re.compile(
    r"""^\s*(?:export\s+)?[A-Za-z_][A-Za-z0-9_]*=("[^"]*"|'[^']*'|[^\s'";|&]*)\s*(#.*)?$"""
)
_MODELFILE_LINE = re.compile(r"^\s*PARAMETER\s+\S+", re.IGNORECASE | re.MULTILINE)
_MANIFEST_KEYS: Final = frozenset(
    "apiVersion spec services containers image command args entrypoint vllmConfig items".split()
)
MAX_BYTES: Final = 2_000_000


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
        return _json_lines(name, text)
    if base.endswith(".json") or (stripped[:1] in ("{", "[") and _parses(text)):
        return _json_documents(name, base, text)
    if base.endswith((".yaml", ".yml")):
        from detdiag.audit.manifests import yaml_documents

        return yaml_documents(name, text, header)
    if _is_modelfile(base, text):
        return [_modelfile(name, text)]
    if base == "dockerfile" or base.startswith("dockerfile.") or base.endswith(".dockerfile"):
        from detdiag.audit.dockerfile import dockerfile_documents

        return dockerfile_documents(name, text)
    if base == ".env" or base.startswith(".env.") or base.endswith(".env") or _is_env(text):
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


def _json_documents(name: str, base: str, text: str) -> list[Document]:
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
        version = _api_version(str(url or ""), body)
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


def _api_version(url: str, envelope: Mapping[str, Any]) -> str | None:
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


def _json_lines(name: str, text: str) -> list[Document]:
    documents: list[Document] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            body = jsontext.parse(line)
        except DetdiagError as error:
            raise DetdiagError(error.message, path=name, line=number) from None
        if isinstance(body, dict):
            here = partial(_fixed, number)
            document = body_document(name, "line", body, line, here)
            documents.append(document)
    return documents


def _fixed(line: int, path: tuple[str | int, ...]) -> int:
    return line


def _argument_list(name: str, items: list[str], text: str) -> list[Document]:
    words = [Word(item, 0, 0, jsontext.line_of(text, (i,))) for i, item in enumerate(items)]
    launch = find_launch(words)
    return [] if launch is None else [launch_document(name, launch, text, "args")]


def launch_document(name: str, launch: Launch, text: str, format_: str) -> Document:
    """A document around a server start."""
    return Document(
        name,
        "launch",
        launch.surface,
        launch=launch,
        said=True,
        version=launch.version,
        format=format_,
        text=text,
        locate=partial(_fixed, launch.line),
    )


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


def _is_env(text: str) -> bool:
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    return bool(lines) and all(_ENV_ONLY.match(line) for line in lines)


def parse_env(text: str) -> dict[str, EnvVar]:
    """Variables of an env file (``NAME=value``, quotes and ``export`` allowed)."""
    env: dict[str, EnvVar] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not _ENV_LINE.match(line):
            continue
        key, _, value = line.strip().removeprefix("export ").partition("=")
        value = value.strip()
        if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1:
            value = value[1:-1]
        else:
            value = re.split(r"\s+#", value, maxsplit=1)[0]
        env[key.strip()] = EnvVar(value, number)
    return env


_ENV_ENGINES: Final = (
    ("VLLM_", "vllm"),
    ("SGLANG_", "sglang"),
    ("OLLAMA_", "ollama"),
    ("LLAMA_ARG_", "llamacpp"),
    ("TRTLLM_", "tensorrtllm"),
    ("TLLM_", "tensorrtllm"),
    ("FORCE_", "tensorrtllm"),
    ("SYNC_TOKEN_IDS_ACROSS_TP", "sglang"),
    ("LMDEPLOY_", "lmdeploy"),
)


def env_engine(env: Mapping[str, EnvVar]) -> str | None:
    """The engine whose variables ``env`` sets."""
    for prefix, engine in _ENV_ENGINES:
        if any(name.startswith(prefix) for name in env):
            return engine
    return None


def env_documents(name: str, text: str, header: str | None) -> list[Document]:
    """An env file: variables of one engine, of torch, or of nobody we know."""
    env = parse_env(text)
    lines = {key: var.line for key, var in env.items()}
    engine = SURFACES[header].engine if header else env_engine(env)
    surface = header or ("torch.env" if engine is None else LAUNCH_SURFACES[engine])
    launch = None
    if engine is not None and engine in LAUNCH_SURFACES:
        launch = Launch(engine, {}, env)
    return [
        Document(
            name,
            "env",
            surface,
            {key: var.value for key, var in env.items()},
            launch,
            said=True,
            format="env",
            text=text,
            locate=lambda path: lines.get(str(path[0]), 1) if path else 1,
        )
    ]


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
                version=_api_version(url, {}),
                format="curl",
                text=payload.text,
                locate=partial(_fixed, payload.line - payload.text.count("\n")),
            )
    return None


def yaml_mapping(document: YamlDocument) -> Mapping[str, Any] | None:
    """The document's value if it is a mapping."""
    return document.value if isinstance(document.value, dict) else None


__all__ = [
    "body_document",
    "env_documents",
    "header_surface",
    "launch_document",
    "parse_env",
    "parse_yaml",
    "read_documents",
    "shell_documents",
]
