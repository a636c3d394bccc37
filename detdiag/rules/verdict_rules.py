"""Texts of the dotted verdict rules: titles, why, how to verify, and the ways out with their cost.

The data sits in ``verdict_rules.yaml``; a compiled JSON copy beside it is what commands load.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.layers import LAYERS
from detdiag.rules.yamltext import parse_yaml

SOURCE: Final = Path(__file__).parent / "verdict_rules.yaml"
COMPILED: Final = Path(__file__).parent / "verdict_rules.json"
_KEYS: Final = frozenset({"passed", "failed", "why", "verify", "remedies"})
_REMEDY_KEYS: Final = frozenset({"action", "command", "cost", "source"})


@dataclass(frozen=True, slots=True)
class RemedyText:
    """One way out; ``cost`` and ``source`` only where they are documented or measured."""

    action: str
    command: str | None = None
    cost: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class RuleText:
    """``passed`` and ``failed`` are the two titles of a rule; ``verify`` says how to check it."""

    rule: str
    passed: str
    failed: str
    why: str
    verify: str
    remedies: tuple[RemedyText, ...] = ()

    @property
    def layer(self) -> str:
        """The layer that the rule belongs to."""
        return self.rule.partition(".")[0]


def load_source(path: Path = SOURCE) -> dict[str, dict[str, Any]]:
    """The checked YAML table; raises :class:`DetdiagError` with the line of a fault."""
    document = parse_yaml(path.read_text(encoding="utf-8"), path)[0]
    for rule, entry in document.value.items():
        line = document.line((rule,))
        if rule.partition(".")[0] not in LAYERS:
            raise DetdiagError(f"{rule!r} does not begin with a layer", path=path, line=line)
        missing = {"passed", "failed", "why", "verify"} - set(entry)
        unknown = set(entry) - _KEYS
        if missing or unknown:
            text = f"{rule}: missing {sorted(missing)}, unknown {sorted(unknown)}"
            raise DetdiagError(text, path=path, line=line)
        for index, remedy in enumerate(entry.get("remedies", [])):
            if "action" not in remedy or not set(remedy) <= _REMEDY_KEYS:
                at = document.line((rule, "remedies", index))
                raise DetdiagError(f"{rule}: bad remedy", path=path, line=at)
    return dict(document.value)


@lru_cache(maxsize=1)
def all_texts() -> dict[str, RuleText]:
    """Every verdict rule by name."""
    return {
        rule: RuleText(
            rule,
            entry["passed"],
            entry["failed"],
            entry["why"],
            entry["verify"],
            tuple(RemedyText(**remedy) for remedy in entry.get("remedies", [])),
        )
        for rule, entry in json.loads(COMPILED.read_text(encoding="utf-8")).items()
    }


def describe(rule: str) -> RuleText | None:
    """The texts of ``rule``, or None for a rule that has none.

    A contrast names its rule after the factor (``LAYER.FACTOR-changes-output``), and any factor
    may be recorded: those without a text of their own share one.
    """
    return all_texts().get(rule) or _contrast(rule)


def _contrast(rule: str) -> RuleText | None:
    layer, _, rest = rule.partition(".")
    factor = rest.removesuffix("-changes-output")
    if factor == rest or not factor or layer not in (*LAYERS, "unknown"):
        return None
    name = factor.replace("-", " ")
    return RuleText(
        rule,
        f"The answer does not change with {name}",
        f"The answer changes with {name}",
        "observations that agree in every other recorded factor differ where this one does, and "
        "repeat where it does not",
        f"hold everything else, change {name} alone and back again, and repeat each side",
        (RemedyText(f"hold {name} at one value, or report results for each value apart"),),
    )
