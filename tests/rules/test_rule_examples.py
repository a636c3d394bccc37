"""Every rule is shown to fire and to keep quiet, by the examples in its own file."""

from __future__ import annotations

from collections import defaultdict

import pytest

from detdiag.rules.load import Example, all_rules, load_sources
from tests.rules.rule_examples import fires

RULES, EXAMPLES = load_sources()


def _name(example: Example) -> str:
    return f"{example.rule}-{example.subject}-{'fires' if example.expect else 'quiet'}"


@pytest.mark.parametrize("example", EXAMPLES, ids=_name)
def test_example(example: Example) -> None:
    assert fires(example) is example.expect


def test_every_rule_has_both_kinds_of_example() -> None:
    kinds: dict[tuple[str, str], set[bool]] = defaultdict(set)
    for example in EXAMPLES:
        kinds[(example.rule, example.subject)].add(example.expect)
    assert [k for k in {(r.id, r.subject) for r in RULES} if kinds[k] != {True, False}] == []


def test_the_compiled_rules_are_the_sources() -> None:
    assert list(all_rules()) == RULES
