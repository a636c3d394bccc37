"""Waivers: who accepts what, why, and until when. Reason, owner and expiry are never optional."""

from __future__ import annotations

import datetime
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.layers import LAYERS

KEYS: Final = ("rule", "layer", "subject", "path", "reason", "owner", "expires")
NEEDED: Final = ("reason", "owner", "expires")


@dataclass(frozen=True, slots=True)
class Waiver:
    """``rule`` and ``path`` may be globs; ``expires`` is the last day on which it applies."""

    reason: str
    owner: str
    expires: datetime.date
    rule: str | None = None
    layer: str | None = None
    subject: str | None = None
    path: str | None = None
    origin: str = ""
    """``detdiag.toml:12``: where it is written."""

    @property
    def name(self) -> str:
        """The rule or layer that it waives."""
        return " ".join(part for part in (self.rule, self.layer) if part)

    def expired(self, today: datetime.date) -> bool:
        return today > self.expires

    def covers_layer(self, layer: str) -> bool:
        """Does it speak of the whole layer (also where the layer was not tested)?"""
        return self.layer == layer and not (self.rule or self.subject or self.path)

    def covers(self, layer: str, finding: Mapping[str, Any]) -> bool:
        """Does it speak of this finding? Every field that is set must fit."""
        names = rule_names(finding)
        where = str(finding.get("where") or "").replace("\\", "/")
        file = where.rpartition(":")[0] if where.rpartition(":")[2].isdigit() else where
        return (
            (self.layer is None or self.layer == layer)
            and (self.rule is None or any(fnmatchcase(name, self.rule) for name in names))
            and (self.subject is None or self.subject == finding.get("subject"))
            and (self.path is None or _path_fits(file, self.path))
        )

    def to_dict(self, today: datetime.date) -> dict[str, Any]:
        """As the report shows it beside a finding or an item."""
        return {
            "reason": self.reason,
            "owner": self.owner,
            "expires": self.expires.isoformat(),
            "expired": self.expired(today),
            "where": self.origin,
        }


def rule_names(finding: Mapping[str, Any]) -> tuple[str, ...]:
    """The dotted rule and, for a configuration finding, its id in the rule table."""
    data = finding.get("data")
    table_id = data.get("rule_id") if isinstance(data, Mapping) else None
    return tuple(str(name) for name in (finding.get("rule"), table_id) if name)


def _path_fits(file: str, pattern: str) -> bool:
    return bool(file) and (fnmatchcase(file, pattern) or fnmatchcase(file, f"*/{pattern}"))


Fault = Callable[[str, str | None], DetdiagError]
"""``fault(message, key)`` makes the error at the line of ``key`` (None: of the waiver)."""


def parse_waiver(raw: Any, fault: Fault, origin: str) -> Waiver:
    """One ``[[waiver]]`` table; raises the error that ``fault`` makes for the first mistake."""
    if not isinstance(raw, Mapping):
        raise fault("expected a table: [[waiver]]", None)
    for key in raw:
        if key not in KEYS:
            close = difflib.get_close_matches(str(key), KEYS, n=1)
            tip = f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(KEYS)
            raise fault(f"unknown key {key!r} in a waiver; {tip}", str(key))
    for key in NEEDED:
        if key not in raw or raw[key] == "":
            raise fault(f"a waiver needs {key!r} (reason, owner and expires are required)", None)
    for key in set(KEYS) - {"expires"}:
        if key in raw and (not isinstance(raw[key], str) or not raw[key].strip()):
            raise fault(f"{key}: expected text, found {raw[key]!r}", key)
    if "rule" not in raw and "layer" not in raw:
        raise fault("a waiver names a 'rule' or a 'layer'", None)
    if "layer" in raw and raw["layer"] not in LAYERS:
        close = difflib.get_close_matches(raw["layer"], LAYERS, n=1)
        tip = f"did you mean {close[0]!r}?" if close else "one of " + ", ".join(LAYERS)
        raise fault(f"unknown layer {raw['layer']!r}; {tip}", "layer")
    texts = {key: str(raw[key]) for key in raw if key != "expires"}
    return Waiver(expires=_date(raw["expires"], fault), origin=origin, **texts)


def _date(value: Any, fault: Fault) -> datetime.date:
    if isinstance(value, datetime.datetime):
        return value.date()
    if isinstance(value, datetime.date):
        return value
    try:
        return datetime.date.fromisoformat(value)
    except (TypeError, ValueError):
        text = f"expires: expected a date such as 2027-03-31, found {value!r}"
        raise fault(text, "expires") from None
