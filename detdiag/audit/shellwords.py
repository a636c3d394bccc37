"""Shell text as commands of words with their places.

Follows ``shlex`` (POSIX quoting; a test compares the two) and adds what an audit needs: the span
and line of every word, comments only at the start of a word, line continuations, and commands
split at operators. A line that begins with ``-`` continues the line above: no shell command
starts so, and launch files are often written one flag a line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from detdiag.errors import DetdiagError


@dataclass(frozen=True, slots=True)
class Word:
    """One word; ``start`` and ``end`` are offsets of its source text, ``line`` is 1-based."""

    text: str
    start: int
    end: int
    line: int


@dataclass(slots=True)
class _State:
    text: str
    path: str | Path | None
    at: int = 0
    line: int = 1
    words: list[Word] = field(default_factory=list)
    commands: list[list[Word]] = field(default_factory=list)
    drop_next: bool = False


def parse_commands(text: str, path: str | Path | None = None) -> list[list[Word]]:
    """Commands of ``text``, each a list of words; raises on an unclosed quote."""
    state = _State(text, path)
    while state.at < len(text):
        char = text[state.at]
        if char == "\n":
            _newline(state)
        elif char in " \t\r":
            state.at += 1
        elif char == "#":
            _comment(state)
        elif char == "\\" and text[state.at + 1 : state.at + 2] in ("\n", "\r"):
            _continuation(state)
        elif char in ";&|()":
            _finish(state)
            state.at += 1
        elif char in "<>":
            if state.words and state.words[-1].end == state.at and state.words[-1].text.isdigit():
                state.words.pop()  # the file descriptor of "2>"
            while state.at < len(text) and text[state.at] in "<>&|":
                state.at += 1
            state.drop_next = True
        else:
            _word(state)
    _finish(state)
    return state.commands


def _finish(state: _State) -> None:
    if state.words:
        state.commands.append(state.words)
    state.words = []
    state.drop_next = False


def _newline(state: _State) -> None:
    state.at += 1
    state.line += 1
    rest = state.text[state.at : state.at + 200].lstrip(" \t\r\n")
    if not (rest.startswith("-") and not rest.startswith("- ")):
        _finish(state)


def _comment(state: _State) -> None:
    while state.at < len(state.text) and state.text[state.at] != "\n":
        state.at += 1


def _continuation(state: _State) -> None:
    end = state.text.find("\n", state.at)
    state.at = len(state.text) if end < 0 else end + 1
    state.line += 1


def _word(state: _State) -> None:
    text, start, line = state.text, state.at, state.line
    parts: list[str] = []
    while state.at < len(text) and text[state.at] not in " \t\r\n;&|()<>":
        char = text[state.at]
        if char in "'\"":
            parts.append(_quoted(state, char))
        elif char == "\\":
            follower = text[state.at + 1 : state.at + 2]
            if follower == "\n":
                state.line += 1
            else:
                parts.append(follower)
            state.at += 2
        elif char == "$" and text[state.at + 1 : state.at + 2] in "({" and _closed(state):
            parts.append(_expansion(state))
        else:
            parts.append(char)
            state.at += 1
    state.at = min(state.at, len(text))
    if state.drop_next:
        state.drop_next = False
    else:
        state.words.append(Word("".join(parts), start, state.at, line))


def _closed(state: _State) -> bool:
    opener = state.text[state.at + 1 : state.at + 2]
    return bool(opener) and (")" if opener == "(" else "}") in state.text[state.at :]


def _expansion(state: _State) -> str:
    """``$(...)`` or ``${...}`` as one opaque piece of a word."""
    opener = state.text[state.at + 1]
    closer = ")" if opener == "(" else "}"
    end, depth = state.at + 1, 0
    while end < len(state.text):
        depth += (state.text[end] == opener) - (state.text[end] == closer)
        end += 1
        if depth == 0:
            break
    piece = state.text[state.at : end]
    state.line += piece.count("\n")
    state.at = end
    return piece


def _quoted(state: _State, quote: str) -> str:
    text, line = state.text, state.line
    state.at += 1
    parts: list[str] = []
    while state.at < len(text) and text[state.at] != quote:
        char = text[state.at]
        if char == "\\" and quote == '"' and text[state.at + 1 : state.at + 2] in ('"', "\\", "\n"):
            state.at += 1
            char = text[state.at]
            state.line += char == "\n"
            parts.append("" if char == "\n" else char)
        else:
            state.line += char == "\n"
            parts.append(char)
        state.at += 1
    if state.at >= len(text):
        raise DetdiagError("a quote is not closed", path=state.path, line=line)
    state.at += 1
    return "".join(parts)
