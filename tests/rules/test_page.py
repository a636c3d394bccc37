"""The generated page is what the rule files say."""

from __future__ import annotations

from pathlib import Path

from detdiag.rules.decode_facts import COMPILED, all_facts, expected_tie_rate, load_source
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


def test_expected_ties_match_rounding_by_brute_force() -> None:
    """Random logits rounded to a grid tie as often as the formula says."""
    import random

    rng = random.Random(0)
    step = 2.0**-3  # bfloat16 between 16 and 32
    tops, gaps, ties = [], [], 0
    for _ in range(40_000):
        top = rng.uniform(17, 31)
        gap = rng.expovariate(4.0)
        tops.append(top)
        gaps.append(gap)
        ties += round(top / step) == round((top - gap) / step)
    expected = expected_tie_rate(tops, gaps, "bfloat16")
    assert expected is not None
    assert abs(ties / len(tops) - expected) < 0.006
    assert expected_tie_rate([20.0], [0.2], "float32") == 0.0
    assert expected_tie_rate([], [], "float16") is None
