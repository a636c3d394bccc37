"""Env files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from detdiag.audit.document import Document
from detdiag.audit.launch import (
    LAUNCH_SURFACES,
    EnvVar,
    Launch,
)
from detdiag.audit.surfaces import SURFACES

_ENV_LINE = re.compile(r"^\s*(?:export\s+)?[A-Za-z_][A-Za-z0-9_]*\s*=")
_ENV_ONLY = re.compile(
    r"""^\s*(?:export\s+)?[A-Za-z_][A-Za-z0-9_]*=("[^"]*"|'[^']*'|[^\s'";|&]*)\s*(#.*)?$"""
)
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


def is_env(text: str) -> bool:
    """Whether every line of ``text`` sets a variable."""
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
