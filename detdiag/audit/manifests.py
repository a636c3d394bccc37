"""YAML that starts servers: compose files, Kubernetes objects, Helm values, plain settings.

Any mapping that names an image or a command is looked at; what it starts decides, not the schema
it belongs to, so that charts and templates of many shapes are covered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from detdiag.audit.document import Document
from detdiag.audit.launch import EnvVar, Launch, find_launch, image_engine, make_launch
from detdiag.audit.shellwords import Word, parse_commands
from detdiag.audit.surfaces import SURFACES
from detdiag.errors import DetdiagError
from detdiag.rules.yamltext import KeyPath, YamlDocument, parse_yaml

_COMMAND_KEYS: Final = ("entrypoint", "command", "args", "extraArgs", "extra_args", "cmd")
_ENV_KEYS: Final = ("env", "environment", "extraEnv", "envVars", "extraEnvVars")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
MAX_NODES: Final = 20_000


def yaml_documents(name: str, text: str, header: str | None) -> list[Document]:
    """Server starts of a YAML file, or the body or settings that it holds."""
    found: list[Document] = []
    for document in parse_yaml(text, name):
        starts = [
            Document(
                name,
                "launch",
                launch.surface,
                launch=launch,
                said=True,
                version=launch.version,
                format="yaml",
                text=text,
                locate=partial(_line, document, path),
                meta=meta,
            )
            for path, launch, meta in _starts(document)
        ]
        found.extend(starts)
        if not starts and isinstance(document.value, dict):
            found.extend(_body(name, document, text, header))
    return found


def _line(document: YamlDocument, base: KeyPath, path: KeyPath) -> int:
    return document.line((*base, *path))


def _body(name: str, document: YamlDocument, text: str, header: str | None) -> Iterator[Document]:
    from detdiag.audit.read_json import body_document

    body = {str(key): value for key, value in document.value.items()}
    read = body_document(name, name.rsplit("/", 1)[-1], body, text, document.line, "yaml")
    if header is not None:
        from detdiag.audit.place import speak

        yield speak(replace(read, said=False), header)
    elif read.said:
        yield read
    elif {"messages", "prompt"} & set(body):
        yield read


def _starts(document: YamlDocument) -> Iterator[tuple[KeyPath, Launch, dict[str, Any]]]:
    for path, mapping in _mappings(document.value):
        launch = _launch_of(document, path, mapping)
        if launch is not None:
            yield path, launch, _meta(document.value, path)


def _mappings(value: Any) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """Every mapping once (aliases are shared), up to a bound on the size of the tree."""
    seen: set[int] = set()
    stack: list[tuple[KeyPath, Any]] = [((), value)]
    while stack and len(seen) < MAX_NODES:
        path, item = stack.pop()
        if not isinstance(item, (dict, list)) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            yield path, item
            children = [((*path, str(key)), child) for key, child in item.items()]
        else:
            children = [((*path, index), child) for index, child in enumerate(item)]
        stack.extend(reversed(children))


def _launch_of(document: YamlDocument, path: KeyPath, item: Mapping[str, Any]) -> Launch | None:
    words = [word for key in _COMMAND_KEYS for word in _words(document, path, item, key)]
    image = _image(item)
    engine, version = image_engine(image) if image else (None, None)
    if not words and engine is None and "vllmConfig" not in item:
        return None
    env = _env(document, path, item)
    launch = find_launch(words, env) if words else None
    if launch is None and isinstance(item.get("vllmConfig"), dict):
        launch = _vllm_chart(document, path, item, env)
    if launch is None and engine is not None and _is_container(item):
        anchor = Word(image or "", 0, 0, document.line((*path, "image")))
        flags = [w for w in words if w.text not in ("/bin/sh", "sh", "bash", "-c", "serve")]
        launch = make_launch(engine, flags, env, version, anchor)
    if launch is not None and launch.version is None and version is not None:
        launch = replace(launch, version=version)
    return launch


def _is_container(item: Mapping[str, Any]) -> bool:
    return any(key in item for key in (*_COMMAND_KEYS, *_ENV_KEYS, "name", "ports", "volumes"))


def _image(item: Mapping[str, Any]) -> str | None:
    image = item.get("image")
    if isinstance(image, dict):
        repository, tag = image.get("repository"), image.get("tag")
        return f"{repository}:{tag}" if repository else None
    if image is None and isinstance(item.get("repository"), str):
        return f"{item['repository']}:{item.get('tag', '')}"
    return image if isinstance(image, str) else None


def _words(
    document: YamlDocument, path: KeyPath, item: Mapping[str, Any], key: str
) -> Iterator[Word]:
    value = item.get(key)
    if isinstance(value, str):
        line = document.line((*path, key))
        try:
            commands = parse_commands(value)
        except DetdiagError:
            return
        for command in commands:
            for word in command:
                yield Word(word.text, 0, 0, line + word.line - 1)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            if isinstance(part, (str, int, float)):
                yield from _list_words(part, document.line((*path, key, index)))


def _list_words(part: str | int | float, line: int) -> Iterator[Word]:
    """One list entry is one word, but charts often put ``--flag value`` into one entry."""
    text = str(part).lower() if isinstance(part, bool) else str(part)
    if text.startswith("--") and " " in text and "=" not in text.split(" ", 1)[0]:
        flag, _, value = text.partition(" ")
        yield Word(flag, 0, 0, line)
        yield Word(value.strip().strip("'\""), 0, 0, line)
    else:
        yield Word(text, 0, 0, line)


def _env(document: YamlDocument, path: KeyPath, item: Mapping[str, Any]) -> dict[str, EnvVar]:
    env: dict[str, EnvVar] = {}
    for key in _ENV_KEYS:
        value = item.get(key)
        if isinstance(value, dict):
            for name, text in value.items():
                if isinstance(text, (str, int, float)):
                    env[str(name)] = EnvVar(_text(text), document.line((*path, key, str(name))))
        elif isinstance(value, list):
            for index, entry in enumerate(value):
                line = document.line((*path, key, index))
                if isinstance(entry, dict) and isinstance(entry.get("name"), str):
                    env[entry["name"]] = EnvVar(_text(entry.get("value", "")), line)
                elif isinstance(entry, str) and "=" in entry:
                    name, _, text = entry.partition("=")
                    env[name] = EnvVar(text, line)
    return env


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _vllm_chart(
    document: YamlDocument, path: KeyPath, item: Mapping[str, Any], env: Mapping[str, EnvVar]
) -> Launch:
    """``vllmConfig`` of the vLLM production stack: camel-case keys and ``extraArgs``."""
    config = item["vllmConfig"]
    base = (*path, "vllmConfig")
    words: list[Word] = []
    for key, value in config.items():
        line = document.line((*base, str(key)))
        if key == "extraArgs" or value is None:
            continue
        flag = _CAMEL.sub("-", str(key)).lower()
        words.append(Word(f"--{flag}={_text(value)}", 0, 0, line))
    words.extend(_words(document, base, config, "extraArgs"))
    anchor = Word("vllmConfig", 0, 0, document.line(base))
    return make_launch("vllm", words, env, None, anchor)


def _meta(root: Any, path: KeyPath) -> dict[str, Any]:
    """Replica counts on the way down to a container."""
    meta: dict[str, Any] = {"path": path}
    node = root
    for step in ("", *path):
        if step != "":
            listed = isinstance(node, list) and isinstance(step, int)
            node = node[step] if listed else _get(node, step)
        for key in ("replicas", "replicaCount"):
            count = node.get(key) if isinstance(node, dict) else None
            if isinstance(count, int) and not isinstance(count, bool):
                meta["replicas"] = count
    return meta


def _get(mapping: Any, key: str | int) -> Any:
    if key in mapping:
        return mapping[key]
    return next((value for name, value in mapping.items() if str(name) == key), None)


__all__ = ["SURFACES", "yaml_documents"]
