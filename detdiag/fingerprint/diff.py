"""Two fingerprints compared, field by field, by what each difference can change.

Any JSON object of version facts is a fingerprint. Where behaviour was recorded (token ids of the
probes, template renders) it decides, not the bytes of the files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from detdiag.evidence.finding import Severity
from detdiag.fingerprint.consequence import EFFECT_ORDER, Consequence, Effect, consequence
from detdiag.fingerprint.numerics import compare_numerics
from detdiag.fingerprint.texts import template_fields, tokenizer_fields
from detdiag.fingerprint.weightdiff import section, weight_field
from detdiag.layers import Layer

ABSENT: Final = "(absent)"
_PRESENCE_COUNTS: Final = (
    "library_versions",
    "environment",
    "generation_config",
    "config",
    "special_tokens",
    "model_code",
)
"""Sections in which a field that is missing on one side is a difference (unset, not unrecorded)."""

_SECTIONS: Final = ("weights", "tokenizer", "chat_template")
_SERVER_SECTIONS: Final = {"numerics": "digests", "endpoint": "url"}
"""Sections of a live server's fingerprint and a key that tells them: log-probabilities have their
own comparison, and where the facts were taken is none."""
_NO_FACTS: Final = frozenset(("schema", "created", "tool", "loaded"))
"""About the fingerprint file, or (``loaded``) compared by :mod:`detdiag.fingerprint.behaviour`."""
_DIGESTS: Final = (
    "weights_digest",
    "tokenizer_digest",
    "template_digest",
    "generation_config_digest",
)


@dataclass(frozen=True, slots=True)
class FieldDiff:
    """One field that differs. ``text`` says what kind of difference it is, where that is known."""

    field: str
    a: Any
    b: Any
    effect: Effect
    severity: Severity
    acts_on: Layer
    rule: str
    explains: tuple[str, ...] = ()
    text: str = ""

    def describe(self) -> str:
        return self.text or f"{self.field}: {_shown(self.a)} against {_shown(self.b)}"

    def to_dict(self) -> dict[str, Any]:
        """A row of the report's ``fingerprint_diff`` table."""
        return {
            "field": self.field,
            "a": _shown(self.a),
            "b": _shown(self.b),
            "severity": self.severity,
            "acts_on": self.acts_on,
            "effect": self.effect,
            "text": self.text,
        }


def diff_fingerprints(
    a: Mapping[str, Any], b: Mapping[str, Any], *, values: Mapping[str, Any] | None = None
) -> tuple[FieldDiff, ...]:
    """Differences, gravest first. ``values`` is the value comparison of the changed tensors
    (see :func:`detdiag.fingerprint.weightdiff.value_comparison`) where both models are at hand."""
    rows = [*_sections(a, b, values), *_plain_fields(a, b)]
    severities = ("high", "medium", "low", "info")
    return tuple(
        sorted(
            rows,
            key=lambda r: (severities.index(r.severity), EFFECT_ORDER.index(r.effect), r.field),
        )
    )


def compared_fields(a: Mapping[str, Any], b: Mapping[str, Any]) -> int:
    """How many fields both sides recorded."""
    return len(_flat(a).keys() & _flat(b).keys())


def _sections(
    a: Mapping[str, Any], b: Mapping[str, Any], values: Mapping[str, Any] | None
) -> Iterator[FieldDiff]:
    for found in (
        weight_field(a, b, values),
        *tokenizer_fields(a, b),
        *template_fields(a, b),
    ):
        if found is not None:
            yield _row(found.field, found.a, found.b, found.text, found.seen)
    numerics = compare_numerics(a, b)
    if numerics is not None:
        row = _row("numerics", _digest_of(a), _digest_of(b), numerics.describe())
        yield row if numerics.size == "rounding" else replace(row, acts_on="version")


def _digest_of(facts: Mapping[str, Any]) -> str:
    """The numerics of a fingerprint in one word."""
    text = json.dumps(section(section(facts, "numerics"), "digests"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain_fields(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[FieldDiff]:
    flat_a, flat_b = _flat(a), _flat(b)
    for name in [*flat_a, *(k for k in flat_b if k not in flat_a)]:
        in_both = name in flat_a and name in flat_b
        if in_both and _same(flat_a[name], flat_b[name]):
            continue
        if not in_both and not _presence_counts(name, a, b):
            continue
        yield _row(name, flat_a.get(name, ABSENT), flat_b.get(name, ABSENT))
    key = "generation_config_digest"
    if not ("generation_config" in a and "generation_config" in b):
        if key in a and key in b and a[key] != b[key]:
            yield _row(key, a[key], b[key])


def _presence_counts(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    part = name.split(".")[0]
    return part in _PRESENCE_COUNTS and part in a and part in b


def _row(field: str, a: Any, b: Any, text: str = "", seen: bool | None = None) -> FieldDiff:
    """``seen`` False: the bytes differ but no probe showed a consequence."""
    found = consequence(field)
    if seen is False:
        found = Consequence(found.effect, "low", found.acts_on, found.rule, found.explains)
    if text.startswith("equal values") and "renamed" in text:
        # A loader that does not know the new names leaves those tensors uninitialised.
        found = Consequence("unknown", "low", found.acts_on, found.rule, found.explains)
    elif text.startswith("equal values"):
        found = Consequence("inert", "info", found.acts_on, "version.noted-changed")
    return FieldDiff(
        field, a, b, found.effect, found.severity, found.acts_on, found.rule, found.explains, text
    )


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted paths to leaves; lists are leaves. Sections with their own comparison are left out."""
    out: dict[str, Any] = {}
    for key, value in facts.items():
        if not prefix and key in _NO_FACTS:
            continue
        if not prefix and (key in _DIGESTS or _is_section(key, value)):
            continue
        if isinstance(value, Mapping) and value:
            out |= _flat(value, f"{prefix}{key}.")
        else:
            out[f"{prefix}{key}"] = value
    return out


def _is_section(key: str, value: Any) -> bool:
    return isinstance(value, Mapping) and (
        key in _SECTIONS or _SERVER_SECTIONS.get(key, "") in value
    )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    return bool(a == b)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= 120 else text[:119] + "\u2026"
