"""Smallest edits of launch lines: shell text, and lists of words in YAML and Dockerfiles."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from detdiag.audit.flags import FLAG_TABLES, JSON_FLAGS, Flag
from detdiag.audit.launch import Launch, find_launch
from detdiag.audit.shellwords import parse_commands
from detdiag.errors import DetdiagError


def flag_words(name: str, value: Any, engine: str) -> list[str]:
    """The words that set a flag; an empty list where it has to be left out."""
    if value is None:
        return []
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"] if engine in ("vllm", "llamacpp") else []
    text = json.dumps(value) if isinstance(value, (dict, list)) else str(value)
    return [f"--{name}", text]


def merged_value(launch: Launch, name: str, value: Any) -> tuple[str, Any]:
    """``(flag, whole value)`` for a dotted field of a JSON flag such as
    ``override-generation-config.temperature``."""
    base, dot, leaf = name.partition(".")
    if not dot or base not in JSON_FLAGS:
        return name, value
    before = launch.flags.get(base)
    merged = dict(before.value) if before is not None and isinstance(before.value, dict) else {}
    merged[leaf] = value
    return base, merged


def set_shell_flag(text: str, launch: Launch, name: str, value: Any) -> str | None:
    """Shell text with one flag set (None removes it); None where the words cannot be placed."""
    name, value = merged_value(launch, name, value)
    flag = launch.flags.get(name)
    words = [shlex.quote(word) for word in flag_words(name, value, launch.engine)]
    if flag is None:
        if not words or launch.end == 0:
            return text if not words else None
        return _checked(text[: launch.end] + " " + " ".join(words) + text[launch.end :], name)
    start = flag.word.start
    end = flag.word.end if flag.value_word is None else flag.value_word.end
    if end <= start:
        return None
    if len(words) == 2 and flag.spelled.partition(".")[0].lstrip("-") != name:
        words[0] = flag.spelled.partition(".")[0]
    if not words:
        while start > 0 and text[start - 1] in " \t":
            start -= 1
        return text[:start] + text[end:]
    return _checked(text[:start] + " ".join(words) + text[end:], name)


def launches_in(text: str) -> list[Launch]:
    """Server starts in shell text; none where it does not parse."""
    try:
        found = [find_launch(command) for command in parse_commands(text)]
    except DetdiagError:
        return []
    return [launch for launch in found if launch is not None]


def command_entry(words: Sequence[Any]) -> int | None:
    """Index of the list entry that is a whole command line (``bash -c`` with a server start)."""
    for index, entry in enumerate(words):
        if isinstance(entry, str) and " " in entry.strip() and launches_in(entry):
            return index
    return None


def _checked(text: str, name: str) -> str | None:
    """``text`` if a launch in it now has the flag: inside quotes a quoted value may end them."""
    return text if any(name in launch.flags for launch in launches_in(text)) else None


def set_list_flag(words: list[Any], launch: Launch, name: str, value: Any) -> bool:
    """The same edit on a list of words (YAML ``args``, exec form of a Dockerfile), in place;
    False where it cannot be made."""
    index = command_entry(words)
    if index is not None:
        entry = words[index]
        edited = set_shell_flag(entry, launches_in(entry)[0], name, value)
        if edited is not None:
            words[index] = type(entry)(edited)
        return edited is not None
    name, value = merged_value(launch, name, value)
    new = flag_words(name, value, launch.engine)
    at = _find(words, launch.flags.get(name), name, launch.engine)
    if at is None:
        words.extend(new)
        return True
    flag = launch.flags[name]
    text = str(words[at])
    if "=" in text:
        words[at : at + 1] = [f"{text.partition('=')[0]}={new[1]}"] if len(new) == 2 else new
    elif " " in text:
        words[at : at + 1] = [" ".join(new)] if new else []
    else:
        width = 2 if flag.value_word is not None else 1
        if len(new) == 2:
            new[0] = text
        words[at : at + width] = new
    return True


def _find(words: list[Any], flag: Flag | None, name: str, engine: str) -> int | None:
    if flag is None:
        return None
    aliases = FLAG_TABLES[engine].aliases
    for index, word in enumerate(words):
        spelled = re.split(r"[ =]", str(word), maxsplit=1)[0].lstrip("-").replace("_", "-")
        if spelled in (name, f"no-{name}") or aliases.get(spelled) == name:
            return index
    return None


def set_env_on_line(text: str, line: int, name: str, value: str) -> str:
    """Replace the value of ``NAME=...`` on one line, whatever the file's format is."""
    lines = text.split("\n")
    pattern = re.compile(rf"(\b{re.escape(name)}\s*=\s*)(\"[^\"]*\"|'[^']*'|[^\s\"',]*)")
    lines[line - 1] = pattern.sub(lambda m: m.group(1) + value, lines[line - 1], count=1)
    return "\n".join(lines)


def add_shell_env(text: str, launch: Launch, name: str, value: str) -> str | None:
    """A variable in front of the command, or behind ``docker run``."""
    if launch.start_offset < 0:
        return None
    head = text[launch.start_offset :]
    container = re.match(r"(?:sudo\s+)?\S*(?:docker|podman|nerdctl)\s+(?:container\s+)?run\b", head)
    at = launch.start_offset + (container.end() if container else 0)
    piece = f" -e {name}={value}" if container else f"{name}={value} "
    return text[:at] + piece + text[at:]
