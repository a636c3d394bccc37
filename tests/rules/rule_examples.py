"""Run the examples that the rule files carry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from detdiag.audit import AuditResult, audit_files
from detdiag.rules.load import Example

_NAMES = {
    "request": "request.json",
    "request_b": "request_b.json",
    "file": "generation_config.json",
    "call": "generate_kwargs.json",
    "args": "server_args.txt",
    "env": "serving.env",
    "modelfile": "Modelfile",
    "settings": "settings.json",
    "response_a": "response_a.json",
    "response_b": "response_b.json",
    "yaml": "deployment.yaml",
}
_ALIASES = {"--batch-size": "-b", "--ubatch-size": "-ub"}


def files_of(given: Mapping[str, Any]) -> dict[str, bytes]:
    """The deployment of an example as file contents."""
    files = {}
    for key, name in _NAMES.items():
        if key in given:
            value = given[key]
            text = value if isinstance(value, str) else json.dumps(value)
            if key == "env":
                text = "\n".join(f"{k}={v}" for k, v in value.items()) + "\n"
            files[name] = text.encode()
    return files


def audit_example(example: Example) -> AuditResult:
    """Audit an example under its rule's surface unless it names another."""
    given = example.input
    surface = given.get("surface", example.surface)
    version = given.get("version")
    return audit_files(
        files_of(given),
        surface=surface or None,
        engine_version=None if version is None else str(version),
    )


def fires(example: Example) -> bool:
    """Whether the example's rule fires with the example's subject (as the input spells it)."""
    subject = str(example.input.get("subject", example.subject))
    if example.input.get("alias"):
        subject = _ALIASES[subject]
    return any(
        f.data.get("rule_id") == example.rule and f.subject == subject
        for f in audit_example(example).findings
    )
