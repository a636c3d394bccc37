"""``off``, ``warn`` or ``error`` per rule, layer or glob: the most exact entry decides."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, Literal, get_args

from detdiag.layers import LAYERS

Level = Literal["off", "warn", "error"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
_GLOB: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class RuleLevels:
    """``entries`` maps a pattern to its level; ``origins`` to where it is written."""

    entries: Mapping[str, Level] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

    def level_of(self, layer: str, names: Sequence[str]) -> tuple[Level, str] | None:
        """``(level, origin)`` for a finding: its exact name, else the longest glob that fits,
        else its layer; None where nothing is said."""
        exact = [name for name in names if name in self.entries]
        globs = sorted(
            (p for p in self.entries if is_glob(p) and any(fnmatchcase(n, p) for n in names)),
            key=len,
            reverse=True,
        )
        for pattern in (*exact, *globs, layer):
            if pattern in self.entries:
                return self.entries[pattern], self.origins.get(pattern, "")
        return None

    def layer_off(self, layer: str) -> str | None:
        """Where the whole layer is switched off, or None."""
        return self.origins.get(layer, "") if self.entries.get(layer) == "off" else None


def is_glob(pattern: str) -> bool:
    return bool(_GLOB & set(pattern))


@lru_cache(maxsize=1)
def known_rules() -> frozenset[str]:
    """Every rule that a report can name: dotted verdict rules and the ids of the rule table."""
    from detdiag.rules.load import all_rules
    from detdiag.rules.verdict_rules import all_texts

    contrasts = {f"{layer}.contrast" for layer in LAYERS}
    return frozenset(all_texts()) | {rule.id for rule in all_rules()} | contrasts


def pattern_fault(pattern: str) -> str | None:
    """Why ``pattern`` can never match (with a suggestion), or None."""
    if pattern in LAYERS or pattern in known_rules():
        return None
    if is_glob(pattern):
        if any(fnmatchcase(rule, pattern) for rule in known_rules()):
            return None
        return f"{pattern!r} matches no rule; detdiag explain --list shows all"
    close = difflib.get_close_matches(pattern, [*LAYERS, *sorted(known_rules())], n=1, cutoff=0.5)
    tip = f"did you mean {close[0]!r}?" if close else "detdiag explain --list shows all"
    return f"unknown rule or layer {pattern!r}; {tip}"
