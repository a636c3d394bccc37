"""Where every effective setting came from, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from detdiag.gate.options import OPTIONS
from detdiag.gate.settings import Settings
from detdiag.report.safe import visible


def settings_lines(settings: Settings) -> Iterator[str]:
    """``key = value  # origin`` for every effective value, in TOML."""
    rows_ = [(o.key, settings.values[o.key]) for o in OPTIONS if o.key in settings.values]
    texts = [(f"{key} = {_toml(found.value)}", found.origin) for key, found in rows_]
    width = min(44, max((len(text) for text, _ in texts), default=0))
    for text, origin in texts:
        yield f"{text:<{width}}  # {visible(origin)}"
    if settings.rules.entries:
        yield ""
        yield "[rules]"
        for pattern, level in settings.rules.entries.items():
            origin = settings.rules.origins.get(pattern, "")
            yield f"{_toml(pattern)} = {_toml(level)}  # {visible(origin)}"
    for waiver in settings.waivers:
        yield ""
        yield f"[[waiver]]  # {visible(waiver.origin)}"
        for key in ("rule", "layer", "subject", "path", "reason", "owner"):
            if getattr(waiver, key) is not None:
                yield f"{key} = {_toml(getattr(waiver, key))}"
        yield f"expires = {waiver.expires.isoformat()}"


def _toml(value: Any) -> str:
    """A TOML value; hidden characters only as escapes (JSON strings are TOML strings)."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(value) if isinstance(value, str) else str(value)


def settings_json(settings: Settings) -> str:
    """The same as one JSON object."""
    return json.dumps(
        {
            "file": None if settings.file is None else str(settings.file),
            "settings": {
                key: {"value": found.value, "origin": found.origin}
                for key, found in settings.values.items()
            },
            "rules": {
                pattern: {"level": level, "origin": settings.rules.origins.get(pattern, "")}
                for pattern, level in settings.rules.entries.items()
            },
            "waivers": [
                {
                    **{k: getattr(w, k) for k in ("rule", "layer", "subject", "path", "reason")},
                    "owner": w.owner,
                    "expires": w.expires.isoformat(),
                    "origin": w.origin,
                }
                for w in settings.waivers
            ],
        },
        indent=2,
    )
