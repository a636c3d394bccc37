"""Prompts to diagnose with: built-in ones, or a file of text or JSON lines. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question: plain ``text`` or chat ``messages`` (then the chat template renders it)."""

    id: str
    text: str | None
    messages: tuple[dict[str, Any], ...] | None = None


DEFAULT_TEXTS: Final = (
    "The lighthouse keeper wrote in his log that the storm",
    "To find the average of three numbers, first add them and then",
    "In the morning the market opened, and the first thing she bought was",
)
"""Continuations with several plausible next words, so that margins are not all wide."""


def text_prompts(texts: Sequence[str]) -> tuple[Prompt, ...]:
    """Prompts ``p1``, ``p2`` ... of plain text, exactly as given (nothing is stripped)."""
    return tuple(Prompt(f"p{i}", text) for i, text in enumerate(texts, start=1))


def default_prompts() -> tuple[Prompt, ...]:
    """The prompts of a run that names none."""
    return text_prompts(DEFAULT_TEXTS)


def load_prompts(path: str | Path) -> tuple[Prompt, ...]:
    """Read ``path``: ``.jsonl``/``.ndjson``/``.json`` objects, or text with one prompt a line.

    A JSON object has ``messages`` (chat) or ``prompt``/``text``, and optionally ``id``; a JSON
    string is a plain prompt. A byte-order mark stays in the prompt: what a client would send is
    what gets diagnosed. Blank lines are skipped. Raises :class:`DetdiagError` with file and line.
    """
    path = Path(path)
    lines = _decoded_lines(path)
    if path.suffix == ".json":
        prompts = _from_array(path, "\n".join(text for _, text in lines))
    elif path.suffix in {".jsonl", ".ndjson"}:
        filled = [(n, t) for n, t in lines if t.strip("\ufeff \t\r")]
        prompts = [
            _from_json(_parse(text, path, number), path, number, index)
            for index, (number, text) in enumerate(filled)
        ]
    else:
        prompts = list(text_prompts([t for _, t in lines if t.strip()]))
    if not prompts:
        raise DetdiagError("holds no prompt", path=path)
    _refuse_duplicates(prompts, path)
    return tuple(prompts)


def _decoded_lines(path: Path) -> list[tuple[int, str]]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DetdiagError(f"cannot read: {error.strerror}", path=path) from error
    out = []
    for number, line in enumerate(raw.split(b"\n"), start=1):
        try:
            out.append((number, line.decode("utf-8").removesuffix("\r")))
        except UnicodeDecodeError as error:
            raise DetdiagError(
                f"not UTF-8: byte 0x{line[error.start]:02x} at column {error.start + 1}",
                path=path,
                line=number,
                tip="convert it, for example: iconv -f LATIN1 -t UTF-8",
            ) from error
    return out


def _parse(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except ValueError as error:
        raise DetdiagError(f"not valid JSON: {error}", path=path, line=line) from error


def _from_array(path: Path, text: str) -> list[Prompt]:
    value = _parse(text, path, 1)
    items = value if isinstance(value, list) else [value]
    return [_from_json(item, path, None, index) for index, item in enumerate(items)]


def _from_json(value: Any, path: Path, line: int | None, index: int) -> Prompt:
    ident = f"p{index + 1}"
    if isinstance(value, str):
        return Prompt(ident, value)
    if not isinstance(value, Mapping):
        raise DetdiagError("expected a JSON object or string", path=path, line=line)
    ident = str(value.get("id", ident))
    messages = value.get("messages")
    if messages is not None:
        if not _is_chat(messages):
            raise DetdiagError(
                "field 'messages': expected a non-empty list of objects with a 'role'",
                path=path,
                line=line,
            )
        return Prompt(ident, None, tuple(dict(m) for m in messages))
    text = value.get("prompt", value.get("text"))
    if not isinstance(text, str):
        raise DetdiagError("expected 'messages', 'prompt' or 'text'", path=path, line=line)
    return Prompt(ident, text)


def _is_chat(messages: Any) -> bool:
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(m, Mapping) and "role" in m for m in messages)
    )


def _refuse_duplicates(prompts: Sequence[Prompt], path: Path) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise DetdiagError(f"prompt id {prompt.id!r} is used twice", path=path)
        seen.add(prompt.id)
