"""Edits of YAML manifests that keep comments, order and quotes (round-trip parser)."""

from __future__ import annotations

import difflib
import io
import re
from typing import Any

from detdiag.audit.edit_launch import command_entry, launches_in, set_list_flag, set_shell_flag
from detdiag.audit.launch import Launch
from detdiag.errors import DetdiagError
from detdiag.rules.yamltext import parse_yaml

KeyPath = tuple[str | int, ...]
_LISTS = ("args", "command", "extraArgs", "extra_args", "entrypoint", "cmd")


def edit_launch(text: str, path: KeyPath, launch: Launch, space: str, name: str, value: Any) -> str:
    """Set a flag (space ``arg``) or a variable (space ``env``) of the container at ``path``."""
    yaml, documents = _load(text)
    for document in documents:
        container = _walk(document, path)
        if container is None:
            continue
        if space == "env":
            _set_env(container, name, str(value))
        elif not _set_flag(container, launch, name, value):
            return text
        return _dump(yaml, documents, text)
    return text


def edit_value(text: str, path: KeyPath, value: Any) -> str:
    """Set (or with None remove) one value of a YAML mapping."""
    yaml, documents = _load(text)
    node = documents[0]
    for step in path[:-1]:
        node = node.setdefault(step, {})
    if value is None:
        node.pop(path[-1], None)
    else:
        node[path[-1]] = value
    return _dump(yaml, documents, text)


def _load(text: str) -> tuple[Any, list[Any]]:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10_000
    indented = re.search(r"^( *)\S[^\n#]*:[ \t]*(?:#[^\n]*)?\n\1(  +)- ", text, re.MULTILINE)
    if indented:
        yaml.indent(mapping=2, sequence=len(indented.group(2)) + 2, offset=len(indented.group(2)))
    return yaml, list(yaml.load_all(text))


def _dump(yaml: Any, documents: list[Any], before: str) -> str:
    stream = io.StringIO()
    if len(documents) == 1:
        yaml.dump(documents[0], stream)
    else:
        yaml.dump_all(documents, stream)
    written = stream.getvalue()
    kept = _keep_layout(before, written)
    return kept if _same_data(kept, written) else written


def _keep_layout(before: str, written: str) -> str:
    """``written`` with the lines of ``before`` wherever they say the same; new lines take the
    indentation of the line above them."""
    old, new = before.splitlines(), written.splitlines()
    matcher = difflib.SequenceMatcher(None, _bare(old), _bare(new), autojunk=False)
    out: list[str] = []
    shift = 0
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag == "equal":
            out += old[a0:a1]
            shift = _indent(old[a1 - 1]) - _indent(new[b1 - 1])
        elif tag in ("replace", "insert"):
            if tag == "replace" and a1 - a0 == b1 - b0:
                shift = _indent(old[a0]) - _indent(new[b0])
            out += [" " * max(0, _indent(line) + shift) + line.lstrip() for line in new[b0:b1]]
    return "\n".join(out) + ("\n" if before.endswith("\n") else "")


def _bare(lines: list[str]) -> list[str]:
    return [" ".join(line.split()) for line in lines]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _same_data(a: str, b: str) -> bool:
    try:
        return [d.value for d in parse_yaml(a)] == [d.value for d in parse_yaml(b)]
    except DetdiagError:
        return False


def _walk(node: Any, path: KeyPath) -> Any:
    for step in path:
        if isinstance(node, dict):
            node = node.get(step, next((v for k, v in node.items() if str(k) == step), None))
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            node = node[step]
        else:
            return None
    return node if isinstance(node, dict) else None


def _set_flag(container: Any, launch: Launch, name: str, value: Any) -> bool:
    if isinstance(container.get("vllmConfig"), dict):
        container = container["vllmConfig"]
    keys = [key for key in _LISTS if container.get(key)]
    for key in keys:
        if isinstance(container[key], list) and command_entry(container[key]) is not None:
            return set_list_flag(container[key], launch, name, value)
    owner = next(
        (k for k in keys if _mentions(container[k], launch, name)), keys[0] if keys else None
    )
    if owner is None:
        container["args"] = []
        owner = "args"
    current = container[owner]
    if isinstance(current, str):
        inner = next(iter(launches_in(current)), launch)
        edited = set_shell_flag(current, inner, name, value)
        if edited is None:
            edited = current.rstrip() + " " + " ".join(_plain(name, value, launch))
        container[owner] = edited
        return True
    return set_list_flag(current, launch, name, value)


def _plain(name: str, value: Any, launch: Launch) -> list[str]:
    words: list[Any] = []
    set_list_flag(words, launch, name, value)
    return [str(word) for word in words]


def _mentions(value: Any, launch: Launch, name: str) -> bool:
    flag = launch.flags.get(name.partition(".")[0])
    return flag is not None and flag.spelled in str(value)


def _set_env(container: Any, name: str, value: str) -> None:
    key = next((k for k in ("env", "environment", "extraEnv") if k in container), "env")
    env = container.get(key)
    if isinstance(env, dict):
        env[name] = value
        return
    if not isinstance(env, list):
        container[key] = env = []
    for index, entry in enumerate(env):
        if isinstance(entry, dict) and entry.get("name") == name:
            entry["value"] = value
            return
        if isinstance(entry, str) and entry.partition("=")[0] == name:
            env[index] = f"{name}={value}"
            return
    plain = key == "environment" or (env and isinstance(env[0], str))
    env.append(f"{name}={value}" if plain else {"name": name, "value": value})
