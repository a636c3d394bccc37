"""YAML with line numbers: plain values plus the line of any key path.

Built on PyYAML's node tree, so that aliases stay shared and nothing is executed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detdiag.errors import DetdiagError

KeyPath = tuple[str | int, ...]
_STR = "tag:yaml.org,2002:str"
_PLAIN = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "null"))


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """One document of a stream; ``value`` is plain data, ``node`` the tree it came from."""

    value: Any
    node: Any

    def line(self, path: KeyPath) -> int:
        """1-based line of ``path``, or of its nearest existing ancestor."""
        node, line = self.node, self.node.start_mark.line + 1
        for step in path:
            found = _child(node, step)
            if found is None:
                break
            key, node = found
            line = (key or node).start_mark.line + 1
        return int(line)


def _child(node: Any, step: str | int) -> tuple[Any, Any] | None:
    if node.id == "mapping":
        for key, value in node.value:
            if key.value == step or (key.tag != _STR and str(key.value) == str(step)):
                return key, value
    elif node.id == "sequence" and isinstance(step, int) and step < len(node.value):
        return None, node.value[step]
    return None


def parse_yaml(text: str, path: str | Path | None = None) -> list[YamlDocument]:
    """Every document of ``text``; raises :class:`DetdiagError` with the line on bad syntax."""
    import yaml

    loader_type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader = None
    try:
        loader = loader_type(text)
        return [YamlDocument(_value(node), node) for node in _nodes(loader)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        raise DetdiagError(f"not valid YAML: {error.problem}", path=path, line=line) from None
    except yaml.YAMLError as error:
        raise DetdiagError(f"not valid YAML: {str(error).splitlines()[0]}", path=path) from None
    except RecursionError:
        raise DetdiagError("not valid YAML: nested too deeply", path=path) from None
    except ValueError as error:
        raise DetdiagError(f"not valid YAML: {error}", path=path) from None
    finally:
        if loader is not None:
            loader.dispose()


def _nodes(loader: Any) -> Iterator[Any]:
    while loader.check_node():
        node = loader.get_node()
        if node is not None:
            yield node


class _Scalars:
    """Turns plain scalars into Python values; created once (the constructor is not cheap)."""

    instance: Any = None

    @classmethod
    def get(cls) -> Any:
        if cls.instance is None:
            from yaml.constructor import SafeConstructor

            cls.instance = SafeConstructor()
        return cls.instance


def _value(
    node: Any, seen: dict[int, Any] | None = None, open_: frozenset[int] = frozenset()
) -> Any:
    seen = {} if seen is None else seen
    if id(node) in seen:
        return seen[id(node)]
    if id(node) in open_:
        raise ValueError("an alias that contains itself")
    if node.id == "scalar":
        value: Any = node.value
        if node.tag in _PLAIN:
            value = _Scalars.get().construct_object(node)
    elif node.id == "sequence":
        value = [_value(child, seen, open_ | {id(node)}) for child in node.value]
    else:
        value = _mapping(node, seen, open_ | {id(node)})
    seen[id(node)] = value
    return value


def _mapping(node: Any, seen: dict[int, Any], open_: frozenset[int]) -> dict[Hashable, Any]:
    merged: dict[Hashable, Any] = {}
    own: dict[Hashable, Any] = {}
    for key_node, value_node in node.value:
        value = _value(value_node, seen, open_)
        if key_node.tag == "tag:yaml.org,2002:merge":
            sources: Sequence[Any] = value if isinstance(value, list) else [value]
            for source in reversed(sources):
                merged.update(source if isinstance(source, dict) else {})
            continue
        key = _value(key_node, seen, open_)
        own[key if isinstance(key, Hashable) else str(key)] = value
    return {**merged, **own}
