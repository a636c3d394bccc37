"""Whatever rule a report names, ``detdiag explain`` has its reasoning and its remedy."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import detdiag
from detdiag.layers import LAYERS
from detdiag.rules.verdict_rules import all_texts, describe

PACKAGE = Path(detdiag.__file__).parent


def named_rules() -> Iterator[tuple[str, str]]:
    """(rule, module) of every rule that the source gives to a finding as a literal."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for value in _rules_of(node):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value, str(path.relative_to(PACKAGE))


def _rules_of(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        yield from (k.value for k in node.keywords if k.arg == "rule")
        if name == "Finding" and len(node.args) > 1:
            yield node.args[1]
    elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "").endswith("RULE"):
        yield node.value


RULES = sorted(dict(named_rules()).items())


def test_the_scan_finds_the_rules() -> None:
    assert len(RULES) > 25 and ("batch.prefix-reuse" in dict(RULES))


@pytest.mark.parametrize(("rule", "module"), RULES)
def test_rule_has_a_text(rule: str, module: str) -> None:
    assert rule.partition(".")[0] in LAYERS, f"{module}: a rule begins with its layer"
    assert describe(rule) is not None, f"{module}: no text for {rule}"


def test_a_contrast_of_any_factor_is_explained_by_its_layer() -> None:
    text = describe("version.gpu-changes-output")
    assert text is not None and text.layer == "version" and "gpu" in text.failed
    assert describe("version.gpu") is None and describe("weather.gpu-changes-output") is None
    own = "operator.deterministic-algorithms-changes-output"
    assert describe(own) is all_texts()[own]
