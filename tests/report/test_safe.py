from __future__ import annotations

import json
import math
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from detdiag.report.safe import dump_json, dump_json_for_html, json_ready, one_line, pieces, visible

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec=None, exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(JSON)
def test_json_reads_back_to_the_same_object(value: object) -> None:
    assert json.loads(dump_json(value)) == value
    assert json.loads(dump_json_for_html(value)) == value


@given(JSON)
def test_json_holds_no_hidden_character_and_always_encodes(value: object) -> None:
    text = dump_json(value, indent=None)
    text.encode("utf-8")
    bidi = {
        "\u202a",
        "\u202e",
        "\u2066",
        "\u2069",
        "\u200b",
        "\u200d",
        "\ufeff",
        "\u2028",
        "\u2029",
    }
    assert not bidi & set(text)
    assert all(ch >= " " for ch in text)
    assert not set("<>&") & set(dump_json_for_html(value))


def test_numbers_stay_numbers_and_what_json_cannot_hold_is_named() -> None:
    raw = {
        "a": math.nan,
        "b": [math.inf, -math.inf],
        "c": 0.1,
        "d": 12345678901234567890,
        "e": True,
    }
    assert json.loads(dump_json(raw)) == {
        "a": "NaN", "b": ["Infinity", "-Infinity"], "c": 0.1, "d": 12345678901234567890, "e": True,
    }  # fmt: skip
    assert json_ready((1, {2: (3,)})) == [1, {"2": [3]}]


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_visible_leaves_nothing_hidden(text: str) -> None:
    shown = visible(text)
    hidden = [
        c for c in shown if unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    ]
    assert hidden == []
    assert visible(shown) == shown
    assert "".join(part for part, _ in pieces(text)) == shown


def test_escapes_are_the_spelling_people_know() -> None:
    assert visible("a\x1b[31m\u202eb\u200b\ufeff\r\n\t\x00\U000e0041") == (
        "a\\x1b[31m\\u202eb\\u200b\\ufeff\\r\\n\\t\\x00\\U000e0041"
    )
    assert visible("line\nnext", keep="\n") == "line\nnext"
    assert visible("汉字 café") == "汉字 café"
    assert visible("a\u00a0b") == "a\\xa0b"


def test_one_line_cuts_in_the_middle_to_the_limit() -> None:
    assert one_line("x" * 100, 21) == "x" * 13 + "…" + "x" * 7
    assert one_line("short", 21) == "short"
