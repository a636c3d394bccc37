"""The condition language of the rules: typed fields, a fixed set of operators, three connectives.

A condition is a mapping; every entry must hold. Keys are field names or ``any``, ``all``,
``not``. A field's test is ``absent``, ``present``, a plain value (equality) or a mapping of
operators. A field that is absent fails every operator except ``absent`` and ``isnt``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

MISSING: Final = object()
"""Marks a field that nobody set (a JSON null counts as not set)."""

FieldType = str
TYPES: Final = frozenset({"number", "bool", "string", "list", "object", "any"})
_ORDERING: Final = frozenset({"lt", "le", "gt", "ge"})
Lookup = Callable[[str], Any]


def number(value: Any) -> float | None:
    """``value`` as a float where an engine would read it as a number, else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value) if abs(value) < 1e300 else None
    if isinstance(value, str):
        try:
            return float(value.strip())
        except ValueError:
            return None
    return None


def truth(value: Any) -> bool | None:
    """``value`` as a switch (``true``, ``1``, ``"on"`` ...), else None."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    return False if text in ("0", "false", "no", "off") else None


def same(left: Any, right: Any) -> bool:
    """Equality as a parameter means it: 0 equals 0.0 and "0", true equals "true"."""
    if isinstance(left, bool) or isinstance(right, bool):
        return truth(left) is not None and truth(left) == truth(right)
    first, second = number(left), number(right)
    if first is not None and second is not None:
        return first == second
    return bool(str(left).lower() == str(right).lower()) if _texts(left, right) else left == right


def _texts(left: Any, right: Any) -> bool:
    return isinstance(left, str) and isinstance(right, str)


def _ordered(compare: Callable[[float, float], bool]) -> Callable[[Any, Any], bool]:
    def test(value: Any, bound: Any) -> bool:
        left = number(value)
        return left is not None and compare(left, float(bound))

    return test


def _has(value: Any, item: Any) -> bool:
    if isinstance(value, str):
        return str(item).lower() in value.lower()
    return isinstance(value, (list, tuple)) and any(same(entry, item) for entry in value)


OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "eq": same,
    "ne": lambda value, other: not same(value, other),
    "isnt": lambda value, other: not same(value, other),
    "lt": _ordered(lambda a, b: a < b),
    "le": _ordered(lambda a, b: a <= b),
    "gt": _ordered(lambda a, b: a > b),
    "ge": _ordered(lambda a, b: a >= b),
    "in": lambda value, options: any(same(value, option) for option in options),
    "not_in": lambda value, options: not any(same(value, option) for option in options),
    "has": _has,
    "lacks": lambda value, item: not _has(value, item),
    "matches": lambda value, pattern: re.search(pattern, str(value), re.IGNORECASE) is not None,
    "longer_than": lambda value, size: isinstance(value, (list, dict)) and len(value) > size,
}
HOLDS_WHEN_ABSENT: Final = frozenset({"isnt", "absent"})
"""Operators that an unset field satisfies."""

Test = tuple[Any, ...]
"""Compiled condition: ("all"|"any", tests), ("not", test) or (operator, field, operand)."""


class BadCondition(ValueError):
    """``path`` leads to the offending entry inside the condition."""

    def __init__(self, message: str, path: tuple[str | int, ...]) -> None:
        super().__init__(message)
        self.path = path


def compile_condition(
    raw: Any, fields: Mapping[str, FieldType], path: tuple[str | int, ...] = ()
) -> Test:
    """Check ``raw`` against the declared ``fields`` and compile it; raises BadCondition."""
    if not isinstance(raw, Mapping) or not raw:
        raise BadCondition("a condition is a mapping with at least one entry", path)
    tests: list[Test] = []
    for key, entry in raw.items():
        here = (*path, key)
        if key in ("any", "all"):
            tests.append(_connective(key, entry, fields, here))
        elif key == "not":
            tests.append(("not", compile_condition(entry, fields, here)))
        elif key in fields:
            tests.extend(_field_tests(key, entry, fields[key], here))
        else:
            raise BadCondition(f"unknown field {key!r}{_near(key, fields)}", here)
    return tests[0] if len(tests) == 1 else ("all", tuple(tests))


def _connective(
    key: str, entry: Any, fields: Mapping[str, FieldType], path: tuple[str | int, ...]
) -> Test:
    if not isinstance(entry, list) or not entry:
        raise BadCondition(f"{key!r} takes a list of conditions", path)
    return (key, tuple(compile_condition(e, fields, (*path, i)) for i, e in enumerate(entry)))


def _field_tests(
    field: str, entry: Any, kind: FieldType, path: tuple[str | int, ...]
) -> list[Test]:
    if entry in ("absent", "present") and isinstance(entry, str):
        return [(entry, field, None)]
    if not isinstance(entry, Mapping):
        return [("eq", field, entry)]
    tests: list[Test] = []
    for operator, operand in entry.items():
        _check(operator, operand, kind, (*path, operator))
        tests.append((operator, field, operand))
    return tests


def _check(operator: str, operand: Any, kind: FieldType, path: tuple[str | int, ...]) -> None:
    if operator not in OPERATORS:
        raise BadCondition(f"unknown operator {operator!r}{_near(operator, OPERATORS)}", path)
    if operator in _ORDERING:
        if kind not in ("number", "any"):
            raise BadCondition(f"{operator!r} needs a number field, this one is {kind}", path)
        if number(operand) is None:
            raise BadCondition(f"{operator!r} needs a number, not {operand!r}", path)
    if operator in ("in", "not_in") and not isinstance(operand, list):
        raise BadCondition(f"{operator!r} needs a list", path)
    if operator == "matches":
        try:
            re.compile(operand)
        except (re.error, TypeError) as error:
            raise BadCondition(f"bad pattern: {error}", path) from None


def _near(word: str, known: Mapping[str, Any]) -> str:
    import difflib

    close = difflib.get_close_matches(str(word), list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def holds(test: Test, lookup: Lookup) -> bool:
    """Evaluate a compiled condition; ``lookup`` returns :data:`MISSING` for what is not set."""
    head = test[0]
    if head == "all":
        return all(holds(part, lookup) for part in test[1])
    if head == "any":
        return any(holds(part, lookup) for part in test[1])
    if head == "not":
        return not holds(test[1], lookup)
    value = lookup(test[1])
    if value is MISSING or value is None:
        return head in HOLDS_WHEN_ABSENT
    if head == "present":
        return True
    return False if head == "absent" else OPERATORS[head](value, test[2])


def present_fields(test: Test, lookup: Lookup) -> list[str]:
    """Fields of ``test`` that are set, in order: where a finding can point to."""
    if test[0] in ("all", "any"):
        return [name for part in test[1] for name in present_fields(part, lookup)]
    if test[0] == "not":
        return present_fields(test[1], lookup)
    value = lookup(test[1])
    return [] if value is MISSING or value is None else [test[1]]


def fields_of(test: Test) -> list[str]:
    """Every field that ``test`` reads, in order."""
    if test[0] in ("all", "any"):
        return [name for part in test[1] for name in fields_of(part)]
    return fields_of(test[1]) if test[0] == "not" else [test[1]]


_WORDS: Final = {
    "eq": "=",
    "ne": "is set and not",
    "isnt": "is not",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}


def text_of(test: Test) -> str:
    """A compiled condition as one line of text."""
    head = test[0]
    if head in ("all", "any"):
        joined = (" and " if head == "all" else " or ").join(text_of(part) for part in test[1])
        return f"({joined})" if head == "any" else joined
    if head == "not":
        return f"not ({text_of(test[1])})"
    if head in ("absent", "present"):
        return f"{test[1]} is {head}"
    return f"{test[1]} {_WORDS.get(head, head.replace('_', ' '))} {test[2]!r}"
