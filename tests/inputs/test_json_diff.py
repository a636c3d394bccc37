from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detdiag.errors import DetdiagError
from detdiag.inputs.json_diff import diff_json, json_path, path_keys
from detdiag.inputs.json_text import parse_json

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(JSON, JSON, st.booleans())
def test_empty_only_for_the_same_text(a: object, b: object, request: bool) -> None:
    text_a, text_b = json.dumps(a), json.dumps(b)
    changes = diff_json(parse_json(text_a), parse_json(text_b), request=request)
    assert (changes == ()) is (text_a == text_b)
    for change in changes:
        json.dumps(change.to_dict())


BASE = {
    "model": "m",
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": 1, "y": 2}}}],
    "temperature": 0,
}


def changed(**fields: object) -> list[tuple[str, str, str]]:
    return [(c.path, c.kind, c.reach) for c in diff_json(BASE, {**copy.deepcopy(BASE), **fields})]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 1}, [("$.temperature", "value", "parameter")]),
        ({"temperature": "0"}, [("$.temperature", "type", "parameter")]),
        ({"temperature": 0.0}, [("$.temperature", "spelling", "inert")]),
        ({"user": "u"}, [("$.user", "added", "inert")]),
        ({"metadata": {"t": 1}}, [("$.metadata", "added", "inert")]),
        ({"model": "n"}, [("$.model", "text", "model")]),
        ({"extra_body": {"top_k": 1}}, [("$.extra_body", "added", "other")]),
        (
            {"messages": [{"role": "user", "content": "u"}]},
            [("$.messages[0]", "removed", "prompt")],
        ),
        (
            {"messages": [{"content": "s", "role": "system"}, BASE["messages"][1]]},
            [("$.messages[0]", "order", "inert")],
        ),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "f", "parameters": {"y": 2, "x": 1}}}
                ]
            },
            [("$.tools[0].function.parameters", "order", "prompt")],
        ),
    ],
)
def test_each_kind_of_change(fields: dict, expected: list) -> None:
    assert changed(**fields) == expected


def test_strings_are_compared_as_bytes() -> None:
    (change,) = diff_json({"prompt": "a b"}, {"prompt": "a\u200b b"})
    assert change.text_diff is not None
    assert "U+200B ZERO WIDTH SPACE" in change.text_diff.hunks[0].names


def test_duplicate_keys_are_noted() -> None:
    a, b = parse_json('{"seed": 1, "seed": 1}'), parse_json('{"seed": 1}')
    assert [c.kind for c in diff_json(a, b)] == ["duplicate"]


def test_number_spelling_inside_a_tool_reaches_the_prompt() -> None:
    a = parse_json('{"tools": [{"default": 1.0}]}')
    b = parse_json('{"tools": [{"default": 1.00}]}')
    assert [(c.kind, c.reach) for c in diff_json(a, b)] == [("spelling", "prompt")]


def test_two_integers_one_float_apart_are_not_one_value() -> None:
    a, b = parse_json("[9007199254740993]"), parse_json("[9007199254740992]")
    assert [c.kind for c in diff_json(a, b)] == ["value"]


@pytest.mark.parametrize("text", ['{"a": 1', "[" * 200_000, b'{"a": "\xe9"}', ""])
def test_broken_json_is_one_line_with_the_file(text: str | bytes) -> None:
    with pytest.raises(DetdiagError) as caught:
        parse_json(text, "x.json")
    assert str(caught.value).startswith("x.json:") and "\n" not in str(caught.value)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=6) | st.integers(0, 99), max_size=4))
def test_a_path_reads_back(keys: list[str | int]) -> None:
    assert path_keys(json_path(keys)) == tuple(keys)
