"""Redaction of a report (or of one record line) before any renderer sees it.

``prompts`` replaces prompt and output texts by their SHA-256 and length and keeps token ids; token
strings in rows go too, since a column of them spells the text. ``all`` also removes names, paths,
query ids and everything that a sentence quotes. Free sentences may quote a text, so every run of
:data:`RUN` characters that a removed text contains is cut out of them at both levels.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from detdiag.errors import DetdiagError
from detdiag.report.model import mapping

Level = Literal["none", "prompts", "all"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)

RUN: Final = 10
"""Shortest quotation, in characters, that is looked for inside other sentences."""

TEXT_KEYS: Final = frozenset(
    "text prompt prompts content messages completion output input system instructions reply answer "
    "left right rendered body arguments padding_text chat_template stop raw snippet context "
    "tools functions response_format".split()
)
_SECRET_KEYS: Final = frozenset({"authorization", "cookie", "set-cookie", "api_key", "api-key"})
_DEEP_KEYS: Final = frozenset({"messages", "content", "tools", "functions", "response_format"})
_HUNK_KEYS: Final = frozenset({"a", "b"})
TOKEN_KEYS: Final = frozenset({"token", "tokens", "token_text", "top_token", "bytes"})
NAME_KEYS: Final = frozenset(
    "name path file files where model host hostname user username owner server url base_url "
    "endpoint api_base replica provider organization project api_key weights_path repo revision "
    "query_name author authors client model_reported request_id response_id".split()
)
_KEEP_NAMES_UNDER: Final = frozenset({"tool"})
_QUOTED: Final = re.compile(r"\"[^\"\n]{2,}\"|“[^”\n]{2,}”|'[^'\n]{2,}'|`[^`\n]{2,}`|«[^»\n]{2,}»")
_PATHS: Final = re.compile(
    r"(?<![\w.])(?:~?/(?:[\w.@+~-]+/)+[\w.@+~-]*|~/[\w.@+~-]+|[A-Za-z]:\\[^\s\"']+)|https?://[^\s\"'<>]+"
)
_OPTION: Final = re.compile(
    r"(--(?:prompt|system|text)[= ])(\"(?:[^\"\\]|\\.)*\"|'[^']*'|\$'(?:[^'\\]|\\.)*'|\S+)", re.S
)
_NAMED_OPTION: Final = re.compile(
    r"(--(?:model|prompts|case|endpoint|baseline|resume|record|api-key|revision)[= ])"
    r"(\"(?:[^\"\\]|\\.)*\"|'[^']*'|\S+)"
)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def placeholder(text: str) -> str:
    """What stands in a removed text's place: short SHA-256 and length in characters."""
    return f"[redacted sha256:{_digest(text)[:16]} {len(text)} chars]"


@dataclass(slots=True)
class _Redactor:
    level: Level
    grams: set[str] = field(default_factory=set)
    shorts: set[str] = field(default_factory=set)
    queries: dict[str, str] = field(default_factory=dict)
    places: set[str] = field(default_factory=set)

    def learn(self, text: str) -> None:
        """Remember a removed text, so that quotations of it are found elsewhere."""
        stripped = text.strip()
        if len(stripped) >= RUN:
            self.grams.update(stripped[i : i + RUN] for i in range(len(stripped) - RUN + 1))
        elif len(stripped) >= 4:
            self.shorts.add(stripped)

    def sentence(self, text: str, *, strict: bool) -> str:
        """A free sentence without quotations of removed texts."""
        out = _OPTION.sub(lambda m: m[1] + "'[redacted]'", text)
        out = self._without_runs(out)
        for short in sorted(self.shorts, key=len, reverse=True):
            out = re.sub(rf"(?<!\w){re.escape(short)}(?!\w)", "[redacted]", out)
        if strict or self.level == "all":
            out = _QUOTED.sub("'[redacted]'", out)
        if self.level == "all":
            out = _NAMED_OPTION.sub(lambda m: m[1] + "'[redacted]'", out)
            for place in sorted(self.places, key=len, reverse=True):
                out = out.replace(place, "[path]")
            out = _PATHS.sub("[path]", out)
        return out

    def _without_runs(self, text: str) -> str:
        if not self.grams or len(text) < RUN:
            return text
        covered = bytearray(len(text))
        for i in range(len(text) - RUN + 1):
            if text[i : i + RUN] in self.grams:
                covered[i : i + RUN] = b"\x01" * RUN
        if not any(covered):
            return text
        out: list[str] = []
        for i, char in enumerate(text):
            if not covered[i]:
                out.append(char)
            elif i == 0 or not covered[i - 1]:
                out.append("[redacted]")
        return "".join(out)

    def query(self, name: Any) -> Any:
        """Query ids are names that people chose: numbered in order of appearance."""
        if self.level != "all" or not isinstance(name, str):
            return name
        return self.queries.setdefault(name, f"query-{len(self.queries) + 1}")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _is_text_key(key: str, parent: str) -> bool:
    return key in TEXT_KEYS or (key in _HUNK_KEYS and parent == "hunks")


def _each_secret(value: Any, key: str = "", parent: str = "") -> Iterator[str]:
    """Every text that redaction removes, wherever it sits."""
    if _is_text_key(key, parent):
        if isinstance(value, str) or key in _DEEP_KEYS:
            yield from _texts(value)
            return
        yield from (v for v in _items(value) if isinstance(v, str))
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _each_secret(item, str(name), key)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _each_secret(item, key, key)


def _each_query(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "query" and isinstance(item, str):
                yield item
            else:
                yield from _each_query(item)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _each_query(item)


def _each_place(value: Any) -> Iterator[str]:
    """Files that findings and checklist rows point at (``path:line``): sentences repeat them."""
    if isinstance(value, Mapping):
        where = value.get("where")
        if isinstance(where, str) and len(where) >= 4:
            yield where
            yield where.rpartition(":")[0] or where
        for item in value.values():
            yield from _each_place(item)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _each_place(item)


def _hide_texts(value: Any) -> Any:
    """A text, or every text in a structure, as its placeholder."""
    if isinstance(value, str):
        return value if value.startswith("[redacted") else placeholder(value)
    if isinstance(value, Mapping):
        return {k: _hide_texts(v) if k not in ("role", "type") else v for k, v in value.items()}
    if isinstance(value, Sequence):
        return [_hide_texts(v) for v in value]
    return value


def _walk(value: Any, red: _Redactor, key: str = "", parent: str = "", layer: str = "") -> Any:
    if isinstance(value, Mapping):
        if key in _DEEP_KEYS:
            return _hide_texts(value)
        here = str(value.get("layer") or layer)
        return {
            k: _walk(v, red, str(k), key, here)
            for k, v in value.items()
            if not (str(k).lower() in _SECRET_KEYS or (k in TOKEN_KEYS and _holds_text(v)))
        }
    if isinstance(value, str):
        return _hide_string(value, red, key, parent, layer)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        if key in _DEEP_KEYS or key in TEXT_KEYS and not any(isinstance(v, Mapping) for v in value):
            return _hide_texts(value)
        return [_walk(v, red, key, key, layer) for v in value]
    return value


def _holds_text(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, Sequence) and any(isinstance(v, str) for v in value)
    )


_PLAIN: Final = frozenset(
    "layer rule kind outcome attribution severity status confidence divergence schema metric unit "
    "module op label version sha256 record_sha256 dtype device type state padding_side factor "
    "origin parameter surface subject redact ruled_out untested modules".split()
)


def _hide_string(value: str, red: _Redactor, key: str, parent: str, layer: str) -> str:
    if _is_text_key(key, parent):
        return _hide_texts(value)
    if key == "query":
        return str(red.query(value))
    if red.level == "all" and key in NAME_KEYS and parent not in _KEEP_NAMES_UNDER:
        return "[redacted]"
    if red.level == "all" and key == "reason" and parent == "waiver":
        return "[redacted]"
    if key in _PLAIN and parent != "fingerprint_diff":
        return value
    if red.level == "all":
        for name, alias in red.queries.items():
            value = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", alias, value)
    return red.sentence(value, strict=layer == "input")


def redact(obj: Mapping[str, Any], level: str) -> dict[str, Any]:
    """A redacted copy of a report dict or record line; the level is written to ``method.redact``.

    Raise :class:`DetdiagError` for an unknown level. Redacting twice changes nothing.
    """
    if level not in LEVELS:
        raise DetdiagError(f"unknown redaction level {level!r}", tip="known: " + ", ".join(LEVELS))
    if level == "none":
        return dict(obj)
    out = redactor_for([obj], level)(obj)
    if "verdict" in out or "method" in out:
        out["method"] = {**mapping(out.get("method")), "redact": level}
    return out


def redactor_for(objs: Sequence[Mapping[str, Any]], level: str) -> Callable[[Any], dict[str, Any]]:
    """A function that redacts any of ``objs``, knowing the secrets of all of them."""
    red = _Redactor(level if level in LEVELS else "all")
    for obj in objs:
        for text in _each_secret(obj):
            if not text.startswith("[redacted "):
                red.learn(text)
        if red.level == "all":
            for name in _each_query(obj):
                red.query(name)
            red.places.update(p for p in _each_place(obj) if len(p) >= 4 and p != "[redacted]")
    return lambda obj: _walk(obj, red)
