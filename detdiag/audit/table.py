"""The table of effective parameters: value, where it came from, what was ignored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from detdiag.audit.engines.base import SAMPLING_NAMES
from detdiag.audit.unit import Look, Unit
from detdiag.rules.decode_facts import decode_facts
from detdiag.rules.versions import Epoch, merge_text

_CONTENT: Final = frozenset(
    "model messages prompt input inputs contents tools tool_choice stream user metadata system "
    "response_format stream_options modelId text input_ids body host port model-path chat_template "
    "extra_body provider models transforms safetySettings systemInstruction prompts".split()
)
"""Fields of a request that are no generation parameters."""


def parameter_table(
    unit: Unit, looks: Sequence[Look], line: tuple[Epoch, ...]
) -> list[dict[str, Any]]:
    """The parameter table; a row carries versions only where the stretches disagree about it."""
    rows: dict[tuple[str, str], tuple[dict[str, Any], list[int]]] = {}
    for look in looks:
        for row in _look_rows(unit, look):
            entry = rows.setdefault((row["parameter"], repr(row)), (row, []))
            entry[1].extend(look.epochs)
    table = []
    for row, indexes in rows.values():
        if len(indexes) < len(line):
            row["versions"] = merge_text(indexes, line)
        table.append(row)
    order = {name: place for place, name in enumerate(SAMPLING_NAMES)}
    return sorted(table, key=lambda row: order.get(row["parameter"], len(order)))


def _look_rows(unit: Unit, look: Look) -> Iterable[dict[str, Any]]:
    for name, param in look.effective.params.items():
        if name in _CONTENT or (param.value is None and not param.note):
            continue
        row: dict[str, Any] = {
            "surface": unit.surface.name,
            "parameter": name,
            "value": param.value,
            "origin": param.origin,
            "ignored": list(param.ignored),
        }
        if param.note:
            row["note"] = param.note
        yield row
    yield _row(unit, "decoding", look.effective.decoding, look.effective.why)
    facts = decode_facts(unit.engine)
    if facts is not None:
        greedy = look.effective.decoding == "greedy"
        rule = facts.greedy_rule if greedy else facts.sampled_rule
        yield _row(unit, "tie_break", rule, facts.source)
        yield _row(unit, "rng_scope", facts.rng, facts.source)


def _row(unit: Unit, name: str, value: str, origin: str) -> dict[str, Any]:
    return {
        "surface": unit.surface.name,
        "parameter": name,
        "value": value,
        "origin": origin,
        "ignored": [],
    }
