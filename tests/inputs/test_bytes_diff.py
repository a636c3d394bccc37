from __future__ import annotations

import difflib
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detdiag.inputs.bytes_diff import as_bytes, diff_texts
from detdiag.inputs.characters import char_name, visible

ODD = st.text(
    alphabet=st.sampled_from("ab \n\r\t\u200b\ufeffe\u0301\u00e9\u0430\u2028\x85\u00a0\x1b")
)
ANY = st.one_of(st.binary(max_size=200), st.text(max_size=100), ODD)


@settings(max_examples=300, deadline=None)
@given(ANY, ANY)
def test_never_crashes_and_is_empty_only_for_equal_bytes(a: str | bytes, b: str | bytes) -> None:
    diff = diff_texts(a, b)
    same = as_bytes(a) == as_bytes(b)
    assert diff.equal is same
    assert (not diff.hunks) is same
    diff.to_dict()


@settings(max_examples=200, deadline=None)
@given(ODD, ODD)
def test_applying_the_hunks_turns_a_into_b(a: str, b: str) -> None:
    out, at = "", 0
    for hunk in diff_texts(a, b).hunks:
        assert len(a[: hunk.char_a].encode()) == hunk.offset_a
        assert len(b[: hunk.char_b].encode()) == hunk.offset_b
        assert a[hunk.char_a : hunk.char_a + len(hunk.a)] == hunk.a
        assert hunk.line_a == a[: hunk.char_a].count("\n") + 1
        out += a[at : hunk.char_a] + hunk.b
        at = hunk.char_a + len(hunk.a)
    assert out + a[at:] == b


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_first_difference_is_where_a_scan_finds_it(a: str, b: str) -> None:
    a, b = a.encode("utf-8", "replace").decode(), b.encode("utf-8", "replace").decode()
    if a == b:
        return
    match = difflib.SequenceMatcher(None, a, b, autojunk=False).find_longest_match(0, 0, 0, 0)
    assert match.size == 0
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    expected = min(len(a), len(b)) if first is None else first
    hunk = diff_texts(a, b).hunks[0]
    assert hunk.char_a <= expected or hunk.char_b <= expected
    assert a[: hunk.char_a] == b[: hunk.char_b]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=80))
def test_nfc_and_nfd_of_one_text_fold_together(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    a, b = unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)
    diff = diff_texts(a, b)
    if a != b:
        assert any(note.code == "nfc-equal" for note in diff.notes)
        assert diff.equal_after


@pytest.mark.parametrize(
    ("a", "b", "note", "fold", "name"),
    [
        ("x", "\ufeffx", "bom", "byte-order mark removed", "U+FEFF ZERO WIDTH NO-BREAK SPACE"),
        ("a\nb\n", "a\r\nb\r\n", "newlines", "newlines as LF", "U+000D CARRIAGE RETURN"),
        ("a b", "a\u00a0b", "odd-space", "spaces as U+0020", "U+00A0 NO-BREAK SPACE"),
        (
            "ab",
            "a\u200bb",
            "zero-width",
            "zero-width characters removed",
            "U+200B ZERO WIDTH SPACE",
        ),
        ("ab", "a\u202eb", "bidi", "bidi controls removed", "U+202E RIGHT-TO-LEFT OVERRIDE"),
        ("ab", "a\x1bb", "control", "control characters removed", "U+001B ESCAPE"),
        (
            "pay",
            "p\u0430y",
            "homoglyph",
            "look-alike letters as Latin",
            "U+0430 CYRILLIC SMALL LETTER A",
        ),
        ("caf\u00e9", "cafe\u0301", "nfc-equal", "NFC", "U+0301 COMBINING ACUTE ACCENT"),
        ("x", "x\n", "trailing-newline", "trailing white space removed", "U+000A LINE FEED"),
        ("x", "x ", "trailing-space", "trailing white space removed", "U+0020 SPACE"),
        ("a\nb", "a\u2028b", "newlines", "newlines as LF", "U+2028 LINE SEPARATOR"),
        (
            "caf\u00e9 au lait",
            "caf\u00e9 au lait".encode("latin-1"),
            "invalid-utf8",
            "Latin-1 bytes decoded as such",
            "byte 0xE9 (not UTF-8)",
        ),
        ("\u00e9t\u00e9", "\u00c3\u00a9t\u00c3\u00a9", None, "Latin-1 mix-up undone", None),
        ("it's", "it\u2019s", None, "quotes and dashes straightened", None),
        ("Word", "word", "case", "case folded", None),
    ],
)
def test_planted_differences_are_named(
    a: str, b: str | bytes, note: str | None, fold: str, name: str | None
) -> None:
    diff = diff_texts(a, b)
    codes = {n.code for n in diff.notes}
    assert note is None or note in codes
    assert diff.equal_after == (fold,)
    assert name is None or any(name in hunk.names for hunk in diff.hunks)


def test_two_foldings_together_are_found_and_no_more() -> None:
    a = "R\u00e9sum\u00e9 Zo\u00e9"
    b = unicodedata.normalize("NFD", a).replace(" ", " \u200b")
    assert set(diff_texts(a, b).equal_after) == {"zero-width characters removed", "NFC"}


def test_a_decomposed_letter_is_one_small_hunk() -> None:
    a = "R\u00e9sum\u00e9 Zo\u00e9"
    hunks = diff_texts(a, unicodedata.normalize("NFD", a)).hunks
    assert [hunk.a for hunk in hunks] == ["\u00e9"] * 3


def test_texts_that_no_folding_joins_say_nothing() -> None:
    diff = diff_texts("one", "two")
    assert diff.equal_after == () and not diff.equal


def test_offsets_of_a_planted_character() -> None:
    hunk = diff_texts("\u00e9a\nbc", "\u00e9a\nb\u200bc").hunks[0]
    assert (hunk.offset_a, hunk.char_a, hunk.line_a, hunk.col_a) == (5, 4, 2, 2)


def test_a_megabyte_with_scattered_changes_is_quick() -> None:
    a = "".join(f"line {i} of a long prompt, caf\u00e9\n" for i in range(30_000))
    b = a.replace("line 7", "line \u200b7")
    start = time.process_time()
    diff = diff_texts(a, b)
    assert time.process_time() - start < 4
    assert diff.equal_after == ("zero-width characters removed",)
    assert len(diff.hunks) == 200 and diff.hunks_left_out > 0


def test_names_agree_with_unicodedata_and_terminal_text_is_inert() -> None:
    for code in (0x200B, 0x00E9, 0x0410, 0x1F600):
        assert char_name(chr(code)) == f"U+{code:04X} {unicodedata.name(chr(code))}"
    shown = visible("a\x1b[31m\u202e\u200b\n\x9b")
    assert not any(unicodedata.category(c)[0] == "C" for c in shown)
