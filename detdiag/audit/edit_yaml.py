"""Edits of YAML manifests that keep comments, order and quotes (round-trip parser)."""

from __future__ import annotations

import io
import re
from typing import Any

from detdiag.audit.edit_launch import set_list_flag, set_shell_flag
from detdiag.audit.launch import Launch, find_launch
from detdiag.audit.shellwords import parse_commands

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
        return _dump(yaml, documents)
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
    return _dump(yaml, documents)


def _load(text: str) -> tuple[Any, list[Any]]:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 10_000
    indented = re.search(r"^( *)\S[^\n#]*:[ \t]*(?:#[^\n]*)?\n\1(  +)- ", text, re.MULTILINE)
    if indented:
        yaml.indent(mapping=2, sequence=len(indented.group(2)) + 2, offset=len(indented.group(2)))
    return yaml, list(yaml.load_all(text))


def _dump(yaml: Any, documents: list[Any]) -> str:
    stream = io.StringIO()
    if len(documents) == 1:
        yaml.dump(documents[0], stream)
    else:
        yaml.dump_all(documents, stream)
    return stream.getvalue()


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
    owner = next(
        (k for k in keys if _mentions(container[k], launch, name)), keys[0] if keys else None
    )
    if owner is None:
        container["args"] = []
        owner = "args"
    current = container[owner]
    if isinstance(current, str):
        words = next(iter(parse_commands(current)), [])
        inner = find_launch(words) or launch
        edited = set_shell_flag(current, inner, name, value)
        if edited is None:
            edited = current.rstrip() + " " + " ".join(_plain(name, value, launch))
        container[owner] = edited
        return True
    set_list_flag(current, launch, name, value)
    return True


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
