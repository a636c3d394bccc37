"""The chat template: its text, and what it renders from fixed messages in a sandbox.

The environment is that of ``transformers/utils/chat_template_utils.py``: an immutable sandbox,
``trim_blocks`` and ``lstrip_blocks`` on, ``tojson`` without sorting, ``raise_exception`` and
``strftime_now``. The clock is fixed, so that equal templates render equal text.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

MESSAGES: Final = (
    {"role": "system", "content": "You are a careful assistant."},
    {"role": "user", "content": " Two spaces  and caf\u00e9.\n"},
    {"role": "assistant", "content": "Noted."},
    {"role": "user", "content": "Go on."},
)
TOOLS: Final = (
    {
        "type": "function",
        "function": {
            "name": "find_slot",
            "description": "Find a slot",
            "parameters": {
                "type": "object",
                "properties": {"day": {"type": "string"}, "hours": {"type": "number"}},
                "required": ["day"],
            },
        },
    },
)
CLOCKS: Final = (datetime(2031, 3, 4, 9, 15, 7), datetime(2032, 11, 25, 21, 46, 58))
_MAX_RENDER: Final = 1_000_000
_MAX_SECONDS: Final = 2.0


def template_texts(folder: Path) -> dict[str, str]:
    """Templates by name (``default``, ``tool_use`` ...), from every place a loader looks in."""
    out: dict[str, str] = {}
    config = folder / "tokenizer_config.json"
    for path in (config, folder / "chat_template.json"):
        if path.is_file():
            out |= _from_json(path)
    single = folder / "chat_template.jinja"
    if single.is_file():
        out["default"] = single.read_bytes().decode("utf-8", "backslashreplace")
    more = folder / "additional_chat_templates"
    if more.is_dir():
        for path in sorted(more.glob("*.jinja")):
            out[path.stem] = path.read_bytes().decode("utf-8", "backslashreplace")
    return out


def _from_json(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_bytes()).get("chat_template")
    except (ValueError, AttributeError, RecursionError):
        return {}
    if isinstance(found, str):
        return {"default": found}
    if isinstance(found, list):
        return {
            str(item.get("name")): str(item.get("template"))
            for item in found
            if isinstance(item, dict)
        }
    return {}


def template_section(folder: Path, special_tokens: dict[str, Any]) -> dict[str, Any]:
    """Digest and text of each template, its renders, and whether it reads the clock."""
    texts = template_texts(folder)
    return section_of(texts, special_tokens) if texts else {}


def section_of(texts: dict[str, str], special_tokens: dict[str, Any]) -> dict[str, Any]:
    """The section for templates given as text, by name."""
    digest = hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()
    return {
        "digest": f"sha256:{digest}",
        "texts": dict(sorted(texts.items())),
        "renders": {name: renders(text, special_tokens) for name, text in sorted(texts.items())},
    }


def renders(template: str, special_tokens: dict[str, Any]) -> dict[str, Any]:
    """Renders ``chat``, ``no_system``, ``tools`` (text or ``{"error": ...}``); ``reads_clock``."""
    chat = [render(template, special_tokens, clock=clock) for clock in CLOCKS]
    return {
        "chat": chat[0],
        "no_system": render(template, special_tokens, messages=MESSAGES[1:]),
        "tools": render(template, special_tokens, tools=list(TOOLS)),
        "reads_clock": chat[0] != chat[1],
    }


def render(
    template: str,
    special_tokens: dict[str, Any],
    *,
    messages: Sequence[dict[str, str]] = MESSAGES,
    tools: list[Any] | None = None,
    clock: datetime = CLOCKS[0],
) -> Any:
    """The rendered text, or ``{"error": ...}``; bounded in size and time."""
    from jinja2.exceptions import TemplateError

    try:
        compiled = _environment(clock).from_string(template)
        stream = compiled.generate(
            messages=[dict(message) for message in messages],
            tools=tools,
            documents=None,
            add_generation_prompt=True,
            **{k: v for k, v in special_tokens.items() if isinstance(v, str)},
        )
        return _bounded(stream)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError,
            RecursionError, AttributeError) as error:  # fmt: skip
        return {"error": f"{type(error).__name__}: {str(error)[:200]}"}


def _bounded(stream: Any) -> str:
    parts: list[str] = []
    size, start = 0, time.monotonic()
    for part in stream:
        parts.append(part)
        size += len(part)
        if size > _MAX_RENDER or time.monotonic() - start > _MAX_SECONDS:
            raise ValueError("the render is too large")
    return "".join(parts)


def _environment(clock: datetime) -> Any:
    from jinja2.exceptions import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(value: Any, **options: Any) -> str:
        options.setdefault("ensure_ascii", False)
        return json.dumps(value, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation_tag(), loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = clock.strftime
    return environment


def _generation_tag() -> Any:
    """``{% generation %}`` marks assistant text for training and renders as its body."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation
