"""Several fingerprints at once: which of them agree, and in what."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detdiag.fingerprint.diff import FieldDiff, diff_fingerprints
from detdiag.fingerprint.weightdiff import section

ASPECTS: Final[tuple[str, ...]] = (
    "weights_digest",
    "tokenizer_digest",
    "template_digest",
    "generation_config_digest",
    "quantisation",
    "library_versions",
    "gpu",
    "driver",
    "cpu",
    "threads",
    "environment",
    "engine",
    "engine_version",
    "system_fingerprint",
    "model_reported",
    "prompt_tokens",
    "tokenizer_probe_ids",
    "numerics",
    "probe_text",
)
"""Columns of the table, in the order in which a difference matters; absent ones are left out."""


@dataclass(frozen=True, slots=True)
class Group:
    """Members that agree in everything that can change the output, and what sets the group apart
    from the first one."""

    label: str
    members: tuple[str, ...]
    differs: tuple[FieldDiff, ...] = ()


def agreeing_groups(prints: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[Group, ...]:
    """Groups named A, B, C ... in order of first appearance; inert differences do not split."""
    held: list[tuple[Mapping[str, Any], list[str]]] = []
    for name, facts in prints:
        for first, members in held:
            if not _live(first, facts):
                members.append(name)
                break
        else:
            held.append((facts, [name]))
    return tuple(
        Group(_letter(i), tuple(members), () if i == 0 else _live(held[0][0], facts))
        for i, (facts, members) in enumerate(held)
    )


def _live(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[FieldDiff, ...]:
    return tuple(row for row in diff_fingerprints(a, b) if row.severity != "info")


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"G{index + 1}"


def aspect_table(
    prints: Sequence[tuple[str, Mapping[str, Any]]],
) -> tuple[tuple[str, ...], list[tuple[str, tuple[str, ...]]]]:
    """(columns, rows): per member one letter a column; equal letters mean equal facts there."""
    columns = tuple(aspect for aspect in ASPECTS if any(aspect in facts for _, facts in prints))
    seen: dict[str, list[str]] = {column: [] for column in columns}
    rows = []
    for name, facts in prints:
        rows.append((name, tuple(_mark(facts, column, seen[column]) for column in columns)))
    return columns, rows


def _mark(facts: Mapping[str, Any], column: str, seen: list[str]) -> str:
    if column not in facts:
        return "-"
    value = facts[column]
    if column == "weights_digest":
        value = section(facts, "weights").get("digest", value)
    if column == "numerics":
        value = section(facts, "numerics").get("digests", value)
    text = json.dumps(value, sort_keys=True, default=str)
    if text not in seen:
        seen.append(text)
    return _letter(seen.index(text))
