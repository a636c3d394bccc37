"""The batch conditions of one prompt, each one factor away from another."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from detdiag.probes.runs import Reference
from detdiag.targets.padding import PaddingSide
from detdiag.targets.prompts import Prompt

EXTRA_PADDING: Final = 7
COPIES: Final = "copies"
AT_START: Final = "start"
AFTER_OTHERS: Final = "after other requests"


@dataclass(frozen=True, slots=True)
class Condition:
    """``rows`` to run, of which ``tested`` are observed (row 0 is the prompt under test).

    ``contrasts`` are (factor, name of the condition that differs in that factor alone).
    ``plain`` marks conditions that change shapes only, never what the row should compute.
    """

    name: str
    rows: tuple[tuple[int, ...], ...]
    padded_length: int
    neighbours: str = COPIES
    padding_side: PaddingSide = "left"
    order: str = AT_START
    tested: tuple[int, ...] = (0,)
    contrasts: tuple[tuple[str, str], ...] = ()
    plain: bool = True

    def factors(self, row: int, repeat: int) -> dict[str, Any]:
        """The same keys for every condition, so that any two compare."""
        return {
            "batch_size": len(self.rows),
            "row": row,
            "neighbours": self.neighbours,
            "padding_side": self.padding_side,
            "padded_length": self.padded_length,
            "order": self.order,
            "repeat": repeat,
        }

    @property
    def tokens(self) -> int:
        return len(self.rows) * self.padded_length


BASE: Final = "solo"
PADDED: Final = "padded left"


def base_condition(ref: Reference) -> Condition:
    """The prompt alone, without padding."""
    return Condition(BASE, (ref.row,), len(ref.row))


def size_conditions(ref: Reference, sizes: Sequence[int]) -> list[Condition]:
    """Batches of copies of the row; first and last row are both observed."""
    return [
        Condition(
            f"batch of {n}",
            (ref.row,) * n,
            len(ref.row),
            tested=(0, n - 1),
            contrasts=(("batch_size", BASE),),
        )
        for n in sorted(set(sizes))
        if n > 1
    ]


def padding_conditions(ref: Reference) -> tuple[Condition, Condition]:
    """The prompt alone behind padding, left and right: as cheap as a solo run."""
    wide = len(ref.row) + EXTRA_PADDING
    return (
        Condition(PADDED, (ref.row,), wide, contrasts=(("padded_length", BASE),)),
        Condition(
            "padded right",
            (ref.row,),
            wide,
            padding_side="right",
            contrasts=(("padding_side", PADDED),),
        ),
    )


def detail_conditions(
    ref: Reference, size: int, others: Sequence[Sequence[int]], vocab: int, seed: int
) -> Iterator[Condition]:
    """Neighbour content at one shape, a padded batch, then longer neighbours, at ``size``."""
    length = len(ref.row)
    text = _fit(others[0] if others else tuple(reversed(ref.row)), length)
    noise = noise_row(length, vocab, seed)
    size_name = f"batch of {size}"
    for label, row in (("other text", text), ("random tokens", noise)):
        yield Condition(
            f"{size_name}, {label}",
            (ref.row, *[row] * (size - 1)),
            length,
            neighbours=label,
            contrasts=(("neighbours", size_name),),
        )
    wide = length + EXTRA_PADDING
    yield Condition(
        f"{size_name}, padded",
        (ref.row,) * size,
        wide,
        contrasts=(("padded_length", size_name), ("batch_size", PADDED)),
    )
    yield Condition(
        f"{size_name}, longer text",
        (ref.row, *[_fit(text, wide)] * (size - 1)),
        wide,
        neighbours="longer text",
        contrasts=(("neighbours", f"{size_name}, padded"),),
    )


def _fit(row: Sequence[int], length: int) -> tuple[int, ...]:
    """``row`` cut or repeated to ``length`` tokens."""
    times = -(-length // len(row))
    return (tuple(row) * times)[:length]


def noise_row(length: int, vocab: int, seed: int) -> tuple[int, ...]:
    """Random tokens: content that shares nothing, first token included, with real prompts."""
    draw = random.Random(seed)
    return tuple(draw.randrange(vocab) for _ in range(length))


def mirrored_conditions(
    ref: Reference, size: int, vocab: int, seed: int
) -> tuple[Reference, list[Condition]]:
    """The same neighbour contrast seen from the neighbour: its own reference and two conditions.

    What couples rows through a maximum over the batch moves only the smaller one of two rows, so
    both sides have to be looked at.
    """
    length = len(ref.row)
    noise = noise_row(length, vocab, seed)
    other = Reference(
        Prompt(f"{ref.prompt.id}-neighbour", None),
        noise[: ref.start + 1],
        (*noise[ref.start + 1 :], noise[0]),
    )
    name = f"batch of {size} random rows"
    return other, [
        Condition(name, (noise,) * size, length, tested=(size - 1,)),
        Condition(
            f"batch of {size}, seen from random tokens",
            (*[ref.row] * (size - 1), noise),
            length,
            neighbours="the prompt",
            tested=(size - 1,),
            contrasts=(("neighbours", name),),
        ),
    ]
