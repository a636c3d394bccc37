"""Answer parsers, and TARa@N by hand."""

from __future__ import annotations

import pytest

from detdiag.errors import DetdiagError
from detdiag.score.answers import by_json_path, by_regex, last_number_in, parser_for


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so 3 + 4 = 7", "7"),
        ("the total is 1,234.50 euros.", "1234.5"),
        ("3.0", "3"),
        ("-0", "0"),
        ("x=-4", "-4"),
        ("pages 3-4", "4"),
        (".5", "0.5"),
        ("1e3", "1000"),
        ("costs 100", "100"),
        ("no number", None),
        ("", None),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_last_number(text: str, expected: str | None) -> None:
    found = last_number_in(text)
    if expected is not None and len(expected) > 100:
        assert found is not None and len(found) > 4
        return
    assert found == expected


def test_regex_takes_the_first_group_or_the_match() -> None:
    assert by_regex(r"answer:\s*(\w+)")("The answer:  B and answer: C") == "B"
    assert by_regex(r"[ABCD]")("so C.") == "C"
    assert by_regex(r"(x)|y")("y") is None
    assert by_regex(r"z")("so C.") is None


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("$.answer", '{"answer": "B"}', '"B"'),
        ("answer", 'Sure! ```json\n{"answer": 3}\n``` done', "3"),
        ("items[1].id", '{"items": [{"id": 1}, {"id": 2}]}', "2"),
        ("$", "[1, 2]", "[1, 2]"),
        ("answer", 'I say {"answer": {"b": 1, "a": 2}} here', '{"a": 2, "b": 1}'),
        ("answer", '{"other": 1}', None),
        ("answer", "no JSON {", None),
        ("items[9]", '{"items": []}', None),
    ],
)
def test_json_path(path: str, text: str, expected: str | None) -> None:
    assert by_json_path(path)(text) == expected


@pytest.mark.parametrize("path", ["a..b", "a[x]", "a[", "."])
def test_a_broken_path_is_refused(path: str) -> None:
    with pytest.raises(DetdiagError, match="expected a path"):
        by_json_path(path)


def test_bad_options_are_one_line() -> None:
    with pytest.raises(DetdiagError, match="answer-regex"):
        by_regex("(")
    with pytest.raises(DetdiagError, match="give one of"):
        parser_for("a", None, True)
    assert parser_for() == (None, "")
