"""Diff of two token-id lists: a doubled BOS, the first difference, what was put in or left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from detdiag.inputs.align import common_prefix, opcodes

TokenNote = Literal[
    "doubled-bos", "missing-bos", "special-at-end", "retokenised", "reordered", "truncated"
]
_MAX_SHOWN: Final = 32


@dataclass(frozen=True, slots=True)
class TokenHunk:
    """``a[start_a:start_a+len(a)]`` became ``b[start_b:...]`` (0-based token indices)."""

    start_a: int
    start_b: int
    a: tuple[int, ...]
    b: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "start_a": self.start_a,
            "start_b": self.start_b,
            "a": list(self.a[:_MAX_SHOWN]),
            "b": list(self.b[:_MAX_SHOWN]),
        }


@dataclass(frozen=True, slots=True)
class TokenDiff:
    """``first_difference`` is the index of the first id that differs, None when equal."""

    equal: bool
    length_a: int
    length_b: int
    first_difference: int | None = None
    hunks: tuple[TokenHunk, ...] = ()
    notes: tuple[tuple[TokenNote, str], ...] = ()

    def has(self, note: TokenNote) -> bool:
        return any(code == note for code, _ in self.notes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "equal": self.equal,
            "length_a": self.length_a,
            "length_b": self.length_b,
            "first_difference": self.first_difference,
            "hunks": [hunk.to_dict() for hunk in self.hunks],
            "notes": [text for _, text in self.notes],
        }


def diff_tokens(
    a: Sequence[int],
    b: Sequence[int],
    *,
    bos_id: int | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> TokenDiff:
    """Compare two id lists. ``decode`` (ids to text) proves a retokenised pair where given."""
    left, right = tuple(a), tuple(b)
    if left == right:
        return TokenDiff(True, len(left), len(right))
    spans = opcodes(left, right) or [(0, len(left), 0, len(right))]
    hunks = tuple(TokenHunk(i1, j1, left[i1:i2], right[j1:j2]) for i1, i2, j1, j2 in spans)
    return TokenDiff(
        False,
        len(left),
        len(right),
        first_difference=common_prefix(left, right),
        hunks=hunks,
        notes=_notes(left, right, hunks, bos_id, decode),
    )


def doubled_bos(ids: Sequence[int], bos_id: int | None = None) -> bool:
    """Whether the list starts with the same id twice (``bos_id`` twice, where it is known)."""
    if len(ids) < 2 or ids[0] != ids[1]:
        return False
    return bos_id is None or ids[0] == bos_id


def _notes(
    a: tuple[int, ...],
    b: tuple[int, ...],
    hunks: tuple[TokenHunk, ...],
    bos_id: int | None,
    decode: Callable[[Sequence[int]], str] | None,
) -> tuple[tuple[TokenNote, str], ...]:
    notes: list[tuple[TokenNote, str]] = []
    for side, longer, shorter in (("a", a, b), ("b", b, a)):
        if len(longer) == len(shorter) + 1 and longer[1:] == shorter:
            if doubled_bos(longer, bos_id):
                notes.append(("doubled-bos", f"{side} has the first id {longer[0]} twice"))
            elif bos_id is None or longer[0] == bos_id:
                other = "b" if side == "a" else "a"
                notes.append(("missing-bos", f"{other} lacks the leading id {longer[0]}"))
        elif doubled_bos(longer, bos_id) and not doubled_bos(shorter, bos_id):
            notes.append(("doubled-bos", f"{side} has the first id {longer[0]} twice"))
        if len(longer) > len(shorter) and longer[: len(shorter)] == shorter:
            extra = len(longer) - len(shorter)
            code: TokenNote = "special-at-end" if extra <= 2 else "truncated"
            notes.append((code, f"{side} has {extra} more ids at the end"))
    if sorted(a) == sorted(b):
        notes.append(("reordered", "the same ids in another order"))
    if decode is not None and decode(a) == decode(b):
        notes.append(("retokenised", f"both decode to the same text; {len(hunks)} places differ"))
    return tuple(notes)
