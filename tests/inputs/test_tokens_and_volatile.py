from __future__ import annotations

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detdiag.inputs.tokens_diff import diff_tokens
from detdiag.inputs.volatile import compare_renders, find_volatile

IDS = st.lists(st.integers(0, 5), max_size=20)


@settings(max_examples=300, deadline=None)
@given(IDS, IDS)
def test_hunks_rebuild_the_other_list(a: list[int], b: list[int]) -> None:
    diff = diff_tokens(a, b)
    assert diff.equal is (a == b) and (not diff.hunks) is (a == b)
    out: list[int] = []
    at = 0
    for hunk in diff.hunks:
        assert tuple(b[hunk.start_b : hunk.start_b + len(hunk.b)]) == hunk.b
        out += a[at : hunk.start_a] + list(hunk.b)
        at = hunk.start_a + len(hunk.a)
    assert out + a[at:] == b
    if a != b:
        pairs = zip(a, b, strict=False)
        first = next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
        assert diff.first_difference == first


def test_doubled_bos_and_missing_bos() -> None:
    assert diff_tokens([2, 2, 105, 7], [2, 105, 7]).has("doubled-bos")
    assert diff_tokens([2, 105], [2, 2, 105], bos_id=2).has("doubled-bos")
    assert not diff_tokens([9, 9, 105], [9, 105], bos_id=2).has("doubled-bos")
    assert diff_tokens([1, 5, 6], [5, 6], bos_id=1).has("missing-bos")
    assert not diff_tokens([4, 5, 6], [5, 6], bos_id=1).has("missing-bos")


def test_a_retokenised_pair_is_proved_by_decoding() -> None:
    pieces = {0: "a", 1: "b", 2: "ab"}
    diff = diff_tokens([2, 0], [0, 1, 0], decode=lambda ids: "".join(pieces[i] for i in ids))
    assert diff.has("retokenised")
    other = diff_tokens([2, 0], [0, 1, 1], decode=lambda ids: "".join(pieces[i] for i in ids))
    assert not other.has("retokenised")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("now 2031-03-04T09:15:07Z.", "clock"),
        ("now 2031-03-04 09:15 UTC", "clock"),
        ("at 9:15 PM", "clock"),
        ("Today Date: 26 July 2024", "date"),
        ("on 2031-05-06,", "date"),
        ("on March 4, 2031", "date"),
        ("ts=1930000000", "epoch"),
        ("ts=1930000000123", "epoch"),
        (f"id {uuid.UUID(int=7)}", "uuid"),
        ("trace 9f86d081884c7d65", "id"),
        ("req_0123456789abcdef", "id"),
        ("<object at 0x7f3a2b1c4d5e>", "address"),
        ("Attempt 3", "counter"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "id"),
    ],
)
def test_patterns(text: str, kind: str) -> None:
    assert [v.kind for v in find_volatile(text)] == [kind]


@pytest.mark.parametrize(
    "text",
    [
        "Sort these words: pear, apple, fig.",
        "12 apples and 7 pears",
        "decade facade",
        "1.500 m",
        "the year 2031",
        "call me",
        "phone 1500000",
    ],
)
def test_ordinary_text_is_not_volatile(text: str) -> None:
    assert find_volatile(text) == ()


def test_renders_tell_a_clock_an_id_and_a_counter() -> None:
    renders = [
        f"Time 2031-03-04T09:15:0{i}Z, ticket {40 + i}, key {'xyzw'[i]}q. Hello." for i in range(3)
    ]
    found = compare_renders(renders)
    assert [v.kind for v in found] == ["clock", "counter", "varies"]
    assert found[1].values == ("40", "41", "42")
    assert found[2].values == ("xq", "yq", "zq")
    assert compare_renders(["same", "same"]) == ()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=4))
def test_comparing_renders_never_crashes(texts: list[str]) -> None:
    assert bool(compare_renders(texts)) is (len(set(texts)) > 1)
