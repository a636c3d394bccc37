"""Load the rule base: YAML files (checked, with line numbers) or the compiled form in the package.

The YAML files under ``detdiag/rules/surfaces`` are the source; ``compiled.json`` beside this
module holds the same rules without their examples, so that a command starts quickly.
``scripts/build_rules.py`` writes it and a test keeps the two in step.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.evidence.finding import KINDS
from detdiag.rules.condition import TYPES, BadCondition, Test, compile_condition
from detdiag.rules.model import EVIDENCE, Rule
from detdiag.rules.versions import parse_span
from detdiag.rules.yamltext import KeyPath, YamlDocument, parse_yaml

SURFACES_DIR: Final = Path(__file__).parent / "surfaces"
COMPILED: Final = Path(__file__).parent / "compiled.json"
_REQUIRED: Final = ("id", "kind", "subject", "when", "title", "explanation", "fix", "source")
_OPTIONAL: Final = (
    "versions versions_note set cost evidence verified note each ties_only outcome triggers passes"
).split()


@dataclass(frozen=True, slots=True)
class Example:
    """An input of a rule's own test: ``expect`` says whether the rule must fire on it."""

    rule: str
    subject: str
    surface: str
    expect: bool
    input: Mapping[str, Any]


def load_file(path: Path) -> tuple[list[Rule], list[Example]]:
    """Rules and examples of one surface file; raises :class:`DetdiagError` with the line."""
    documents = parse_yaml(path.read_text(encoding="utf-8"), path)
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        raise DetdiagError("a rule file is one YAML mapping", path=path)
    doc = documents[0]
    surface = doc.value.get("surface")
    if not isinstance(surface, str):
        raise DetdiagError("the file does not name its surface", path=path, line=1)
    fields = _fields(doc, path)
    rules: list[Rule] = []
    examples: list[Example] = []
    for index, raw in enumerate(doc.value.get("rules", [])):
        for name, variant in _variants(raw, doc, path, index):
            rules.append(_rule(variant, surface, fields, doc, path, ("rules", index)))
            examples.extend(_examples(variant, name, surface))
    return rules, examples


def _fields(doc: YamlDocument, path: Path) -> dict[str, str]:
    fields = doc.value.get("fields", {})
    for name, kind in fields.items():
        if kind not in TYPES:
            line = doc.line(("fields", name))
            raise DetdiagError(f"field {name!r} has unknown type {kind!r}", path=path, line=line)
    return dict(fields)


def _variants(
    raw: Any, doc: YamlDocument, path: Path, index: int
) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """One rule, or one copy (with its name) for every entry of its ``each`` list."""
    at: KeyPath = ("rules", index)
    if not isinstance(raw, dict):
        raise DetdiagError("a rule is a mapping", path=path, line=doc.line(at))
    for key in raw:
        if key not in _REQUIRED and key not in _OPTIONAL:
            raise DetdiagError(
                f"rule {raw.get('id')!r}: unknown key {key!r}", path=path, line=doc.line((*at, key))
            )
    for key in _REQUIRED:
        if key not in raw:
            raise DetdiagError(
                f"rule {raw.get('id')!r} lacks {key!r}", path=path, line=doc.line(at)
            )
    for name in raw.get("each", [None]):
        yield name, raw if name is None else _fill(raw, str(name))


def _fill(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return value.replace("$each", name)
    if isinstance(value, list):
        return [_fill(item, name) for item in value]
    if isinstance(value, dict):
        return {_fill(key, name): _fill(item, name) for key, item in value.items()}
    return value


def _rule(
    raw: dict[str, Any],
    surface: str,
    fields: Mapping[str, str],
    doc: YamlDocument,
    path: Path,
    at: KeyPath,
) -> Rule:
    def bad(message: str, *where: str | int) -> DetdiagError:
        return DetdiagError(
            f"rule {raw['id']!r}: {message}", path=path, line=doc.line((*at, *where))
        )

    if raw["kind"] not in KINDS:
        raise bad(f"unknown kind {raw['kind']!r}", "kind")
    evidence = tuple(str(raw.get("evidence", "source_code")).split("+"))
    if not set(evidence) <= EVIDENCE:
        raise bad(f"unknown evidence {raw.get('evidence')!r}", "evidence")
    for field_name in raw.get("set", {}):
        if field_name not in fields:
            raise bad(f"unknown field {field_name!r}", "set", field_name)
    try:
        when = compile_condition(raw["when"], fields)
    except BadCondition as error:
        raise bad(str(error), "when", *error.path) from None
    try:
        versions = parse_span(str(raw.get("versions", "all")))
    except DetdiagError as error:
        raise bad(error.message, "versions") from None
    return Rule(
        id=str(raw["id"]),
        surface=surface,
        kind=raw["kind"],
        subject=str(raw["subject"]),
        when=when,
        title=_text(raw["title"]),
        explanation=_text(raw["explanation"]),
        fix=_text(raw["fix"]),
        source=_text(raw["source"]),
        evidence=evidence,
        verified=bool(raw.get("verified", True)),
        versions=versions,
        versions_note=_text(raw.get("versions_note", "")),
        edits=dict(raw.get("set", {})),
        cost=_text(raw.get("cost", "")),
        note=_text(raw.get("note", "")),
        ties_only=bool(raw.get("ties_only", False)),
        outcome=str(raw.get("outcome", "")),
    )


def _text(value: Any) -> str:
    return " ".join(str(value).split())


def _examples(raw: Mapping[str, Any], name: str | None, surface: str) -> Iterator[Example]:
    """Examples of one variant; ``only`` restricts an example to the variants it lists."""
    for key, expect in (("triggers", True), ("passes", False)):
        for given in raw.get(key, []):
            if name is None or name in given.get("only", [name]):
                yield Example(str(raw["id"]), str(raw["subject"]), surface, expect, given)


def load_sources(folder: Path = SURFACES_DIR) -> tuple[list[Rule], list[Example]]:
    """Every rule and example of the YAML files, in file order."""
    rules: list[Rule] = []
    examples: list[Example] = []
    for path in sorted(folder.glob("*.yaml")):
        more_rules, more_examples = load_file(path)
        rules.extend(more_rules)
        examples.extend(more_examples)
    return rules, examples


def to_compiled(rules: list[Rule]) -> str:
    """The JSON text of ``compiled.json``."""
    rows = []
    for rule in rules:
        row = {name: getattr(rule, name) for name in Rule.__slots__}
        row["versions"] = str(rule.versions)
        row["evidence"] = list(rule.evidence)
        rows.append({k: v for k, v in row.items() if v not in ("", {}, None) and v is not False})
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows) + "\n]\n"


@lru_cache(maxsize=1)
def all_rules() -> tuple[Rule, ...]:
    """Every rule of the package, from the compiled form."""
    return tuple(_from_row(row) for row in json.loads(COMPILED.read_text(encoding="utf-8")))


def _from_row(row: dict[str, Any]) -> Rule:
    row["versions"] = parse_span(row["versions"])
    row["evidence"] = tuple(row["evidence"])
    row["when"] = _tuples(row["when"])
    row.setdefault("verified", False)
    return Rule(**row)


def _tuples(test: list[Any]) -> Test:
    if test[0] in ("all", "any"):
        return (test[0], tuple(_tuples(part) for part in test[1]))
    return ("not", _tuples(test[1])) if test[0] == "not" else tuple(test)


@lru_cache(maxsize=1)
def rules_by_surface() -> Mapping[str, tuple[Rule, ...]]:
    """Rules grouped by surface name."""
    groups: dict[str, list[Rule]] = {}
    for rule in all_rules():
        groups.setdefault(rule.surface, []).append(rule)
    return {name: tuple(group) for name, group in groups.items()}
