"""The flat view of a deployment that rule conditions look into."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detdiag.audit.document import Document
from detdiag.audit.engines import Effective, Inputs
from detdiag.audit.infer import PARAMETERS
from detdiag.audit.launch import Launch
from detdiag.audit.models import deepseek_thinks, family, is_alias
from detdiag.audit.surfaces import Surface, common_name
from detdiag.rules.condition import MISSING

_MOE: Final = re.compile(
    r"mixtral|moe|-a\d+b|deepseek-(v[23]|r1)|gpt-oss|olmoe|kimi-k2|glm-4\.[56]", re.IGNORECASE
)
KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class RequestView:
    """A request's parameters as the surface spells them, with the path of each in the body."""

    values: Mapping[str, Any]
    paths: Mapping[str, KeyPath]

    def common(self, surface: Surface) -> dict[str, Any]:
        """The parameters under their common names."""
        return {common_name(surface, name): value for name, value in self.values.items()}


def view_request(surface: Surface, body: Mapping[str, Any]) -> RequestView:
    """Collect parameters from the surface's containers; the first container that sets one wins."""
    values: dict[str, Any] = {}
    paths: dict[str, KeyPath] = {}
    camel = "generationConfig" in surface.containers or "inferenceConfig" in surface.containers
    for container in surface.containers:
        inner = body if container == "" else body.get(container)
        if not isinstance(inner, Mapping):
            continue
        for key, value in inner.items():
            name = _camel(key) if camel and isinstance(key, str) else key
            if value is not None and isinstance(name, str) and name not in values:
                values[name] = value
                paths[name] = (key,) if container == "" else (container, key)
    return RequestView(values, paths)


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


@dataclass(slots=True)
class Facts:
    """``lookup`` answers for names such as ``request.temperature`` or ``arg.seed``."""

    spaces: dict[str, Mapping[str, Any]]

    def lookup(self, name: str) -> Any:
        """The value of a field, or MISSING where nobody set it."""
        space, _, path = name.partition(".")
        values = self.spaces.get(space)
        if values is None:
            return MISSING
        if path in values:
            return MISSING if values[path] is None else values[path]
        return _descend(values, path)


def _descend(values: Mapping[str, Any], path: str) -> Any:
    current: Any = values
    for step in path.split("."):
        if not isinstance(current, Mapping) or current.get(step) is None:
            return MISSING
        current = current[step]
    return current


def build_facts(
    inputs: Inputs,
    effective: Effective,
    view: RequestView,
    documents: Mapping[str, Document],
    engine: str,
    extras: Mapping[str, Any],
) -> Facts:
    """Everything that is known about one request (or its absence) in one deployment."""
    model = str(
        inputs.body.get("model")
        or inputs.body.get("modelId")
        or inputs.flags.get("model")
        or inputs.flags.get("model-path")
        or ""
    )
    context = {
        "engine": engine,
        "decoding": effective.decoding,
        "keeps": effective.keeps,
        "error": effective.error or None,
        "model": model or None,
        "family": family(model) or None,
        "alias": is_alias(model),
        "moe": bool(_MOE.search(model)),
        "thinks": deepseek_thinks(inputs.body) if engine == "deepseek" else None,
        **extras,
        "sets_nothing": not PARAMETERS & set(inputs.request),
        "has_request": inputs.has_request,
        "has_launch": inputs.has_launch,
        "has_file": inputs.file is not None,
        "has_call": "call" in documents,
        "has_object": inputs.passed is not None,
        "has_modelfile": inputs.modelfile is not None,
    }
    params = effective.params
    return Facts(
        {
            "request": view.values,
            "body": inputs.body,
            "call": inputs.call,
            "object": inputs.passed or {},
            "file": inputs.file or {},
            "modelfile": inputs.modelfile or {},
            "arg": inputs.flags,
            "env": inputs.env,
            "effective": {name: param.value for name, param in params.items()},
            "origin": {name: param.origin for name, param in params.items()},
            "ctx": context,
        }
    )


_GPUS: Final = (
    ("hopper", re.compile(r"\b(H100|H200|H20|H800|GH200|B100|B200|B300|GB200|GB300)\b")),
    ("ampere", re.compile(r"\b(A100|A800|A10G?|A30|A40|A6000|RTX ?30\d\d)\b")),
)


def surroundings(documents: Sequence[Document]) -> dict[str, Any]:
    """What only the whole deployment tells: GPU named, replicas, launch lines and answers that
    differ from one another."""
    launches = [doc.launch for doc in documents if doc.role == "launch" and doc.launch]
    prints = [doc.data.get("system_fingerprint") for doc in documents if doc.role == "response"]
    text = "\n".join(doc.text for doc in documents if doc.role in ("launch", "env"))
    replicas = [doc.meta["replicas"] for doc in documents if "replicas" in doc.meta]
    known = {str(value) for value in prints if value is not None}
    return {
        "gpu": next((name for name, pattern in _GPUS if pattern.search(text)), None),
        "replicas": max(replicas) if replicas else None,
        "tp_differs": _differ(launches, "tensor-parallel-size"),
        "batch-size_differs": _differ(launches, "batch-size"),
        "ubatch-size_differs": _differ(launches, "ubatch-size"),
        "fingerprints_differ": len(known) > 1,
        "fingerprint_null": len(known) < len(prints) and None in prints,
        "has_env": any(doc.role == "env" for doc in documents),
    }


def _differ(launches: Sequence[Launch], name: str) -> bool:
    values = {str(launch.flags[name].value) for launch in launches if name in launch.flags}
    return len(values) > 1
