"""The generated page is what the rule files say."""

from __future__ import annotations

from pathlib import Path

from detdiag.rules.decode_facts import COMPILED, all_facts, load_source
from detdiag.rules.load import load_sources
from detdiag.rules.page import rules_page

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def test_the_page_is_up_to_date() -> None:
    rules, _ = load_sources()
    assert PAGE.read_text(encoding="utf-8") == rules_page(rules)


def test_the_decode_facts_are_the_source() -> None:
    import json

    assert json.loads(COMPILED.read_text()) == load_source()
    assert {"hf", "vllm", "sglang", "llamacpp"} <= set(all_facts())
    assert not all_facts()["mlc"].greedy_repeats
