"""The gate for people: the checklist on a terminal, and where every setting came from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from detdiag.gate.options import OPTIONS
from detdiag.gate.settings import Settings
from detdiag.report.checklist import outcome_word, waiver_text
from detdiag.report.messages import Say
from detdiag.report.model import mapping, rows
from detdiag.report.safe import one_line, visible

MARKS: Final = {
    "passed": ("✓", "+"),
    "failed": ("✗", "x"),
    "error": ("✗", "x"),
    "warned": ("!", "!"),
    "waived": ("w", "w"),
    "inconclusive": ("?", "?"),
    "skipped": ("–", "-"),
    "not_applicable": ("·", "."),
}


def checklist_lines(report: Mapping[str, Any], say: Say, unicode_ok: bool) -> Iterator[str]:
    """One line an item, its waiver under it, then the notes."""
    gate = mapping(report.get("gate"))
    items = rows(gate.get("items"))
    width = min(48, max((len(visible(row.get("item"))) for row in items), default=8))
    yield f"detdiag check · {visible(gate.get('profile'))}"
    yield ""
    for row in items:
        mark = MARKS.get(str(row.get("outcome")), ("?", "?"))[0 if unicode_ok else 1]
        need = say("checklist.required") if row.get("required") else say("checklist.optional")
        word = outcome_word(row.get("outcome"), say)
        yield (
            f"  {mark} {visible(row.get('item')):<{width}}  {need:<8}  {word:<14} "
            f"{one_line(row.get('evidence'), 160)}"
        ).rstrip()
        if row.get("waiver"):
            yield f"      {say('head.waiver')}: {waiver_text(row['waiver'], say)}"
    notes = gate.get("notes")
    for note in notes if isinstance(notes, list) else ():
        yield f"  {say('head.note')}: {visible(note)}"
    yield ""


def decision_line(report: Mapping[str, Any]) -> str:
    """``NO-GO: ...``: the last line, and the message of the annotation."""
    gate = mapping(report.get("gate"))
    why = gate.get("why")
    reasons = "; ".join(visible(line) for line in why) if isinstance(why, list) else ""
    return f"{visible(gate.get('decision'))}: {reasons}"


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
