"""The settings of the gate: names, types, and what each profile sets by default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

Profile = Literal["quick", "pr", "release"]
PROFILES: Final[tuple[Profile, ...]] = get_args(Profile)
FAIL_ON: Final = ("text", "token", "bitwise")
Kind = Literal[
    "text", "path", "texts", "paths", "share", "count", "rate", "choice", "time", "layers"
]


@dataclass(frozen=True, slots=True)
class Option:
    """One setting. ``share`` lies strictly between 0 and 1, ``count`` is a whole number from 1,
    ``rate`` a number above 0, ``time`` a text such as ``90s``. Paths in a settings file are
    relative to that file."""

    key: str
    kind: Kind
    says: str
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The key as a Python identifier."""
        return self.key.replace("-", "_")


OPTIONS: Final = (
    Option("profile", "choice", "quick, pr or release", PROFILES),
    Option("fail-on", "choice", "weakest difference that fails", FAIL_ON),
    Option("bound", "share", "rate of change that the runs must exclude"),
    Option("confidence", "share", "confidence of the bound"),
    Option("runs", "count", "identical runs"),
    Option("budget", "time", "wall time of the walk"),
    Option("require", "layers", "layers that must be settled"),
    Option("paths", "paths", "files and folders to audit"),
    Option("model", "path", "model folder or hub id"),
    Option("endpoint", "text", "base URL of an OpenAI-compatible server"),
    Option("model-name", "text", "model name at the endpoint"),
    Option("api-key-env", "text", "environment variable that holds the key"),
    Option("request", "path", "request body (JSON) to start from"),
    Option("max-requests", "count", "requests at most"),
    Option("rps", "rate", "requests a second at most"),
    Option("case", "path", "folder of recorded evidence"),
    Option("prompts", "path", "prompts: text, one a line, or JSONL with messages"),
    Option("baseline", "path", "signed-off fingerprint, report or record"),
    Option("batch-sizes", "text", "batch sizes to compare"),
    Option("max-new-tokens", "count", "tokens to generate"),
    Option("generate-kwargs", "path", "JSON: keyword arguments of your generate call"),
    Option("dtype", "text", "bfloat16, float16 or float32"),
    Option("device", "text", "cpu, cuda ..."),
    Option("surface", "text", "surface of files that do not say"),
    Option("engine-version", "text", "engine version for the rules"),
    Option("redact", "choice", "what outputs hide", ("none", "prompts", "all")),
    Option("lang", "choice", "language of fixed text", ("en", "zh")),
)
BY_KEY: Final = {option.key: option for option in OPTIONS}

_COMMON: Final[dict[str, Any]] = {
    "confidence": 0.95,
    "batch-sizes": "1,2,4,8",
    "max-new-tokens": 32,
    "redact": "none",
    "lang": "en",
}
DEFAULTS: Final[dict[Profile, dict[str, Any]]] = {
    "quick": {**_COMMON, "fail-on": "bitwise"},
    "pr": {
        **_COMMON,
        "fail-on": "token",
        "bound": 0.15,
        "budget": "2m",
        "require": ("config", "input", "batch", "operator", "decode"),
    },
    "release": {
        **_COMMON,
        "fail-on": "bitwise",
        "bound": 0.05,
        "budget": "15m",
        "require": ("config", "input", "batch", "operator", "decode", "moe", "version"),
    },
}
"""``runs`` follows from the bound: ln(1 - confidence) / ln(1 - bound), and never under 20."""
MIN_RUNS: Final = 20
