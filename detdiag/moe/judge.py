"""Two runs of one routed block on the same input bits: what differs, and whose doing it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor

from detdiag.moe.decisions import Decisions

EventKind = Literal[
    "capacity",
    "tie",
    "precision",
    "selection",
    "weights",
    "order",
    "scores",
    "lost",
    "rounding",
]
"""``scores``: the scores themselves differ by rounding (a product of another shape), ``lost``:
equal decisions and an output that differs by more than rounding, ``rounding``: by no more."""

SOURCES: Final[frozenset[str]] = frozenset(
    {"capacity", "tie", "precision", "selection", "weights", "order"}
)


@dataclass(frozen=True, slots=True)
class Event:
    """One token of one block. ``margin`` is the score gap at rank k in the first run."""

    token: int
    kind: EventKind
    reason: str
    left: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    margin: float | None = None


def bits(tensor: Tensor) -> Tensor:
    """The raw bits as integers of the same size, so that -0.0 and NaN compare as stored."""
    if not tensor.is_floating_point():
        return tensor
    size = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(size[tensor.element_size()])


def rows_equal(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Per row (first axis): equal to the last bit; None where either is missing."""
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return None
    return (bits(a) == bits(b)).flatten(1).all(-1)


def output_change(a: Tensor, b: Tensor) -> Tensor:
    """Per row: length of the difference over the length of ``a`` (inf where ``a`` is zero)."""
    x, y = a.double().flatten(1), b.double().flatten(1)
    gap, size = (x - y).norm(dim=-1), x.norm(dim=-1)
    return torch.where(gap == 0, gap, gap / size)


def rounding_limit(dtype: torch.dtype) -> float:
    """Relative change of a block's output that products of another shape can make."""
    return max(4 * torch.finfo(dtype).eps, 1e-3)


def judge(left: Decisions, left_out: Tensor, right: Decisions, right_out: Tensor) -> list[Event]:
    """Events of the tokens whose decision or output differs; ``*_out`` are (tokens, hidden)."""
    same_out = rows_equal(left_out, right_out)
    assert same_out is not None, "outputs of one block have one shape"
    same = {
        "ids": rows_equal(left.ids, right.ids),
        "scores": rows_equal(left.scores, right.scores),
        "logits": rows_equal(left.logits, right.logits),
        "weights": rows_equal(left.weights, right.weights),
    }
    # Scores that move without moving a choice, a weight or the output are nobody's concern.
    differs = ~same_out
    for name in ("ids", "weights"):
        column = same[name]
        if column is not None:
            differs |= ~column
    change = output_change(left_out, right_out)
    limit = rounding_limit(left_out.dtype)
    events = []
    for token in differs.nonzero().flatten().tolist():
        known = {k: None if v is None else bool(v[token]) for k, v in same.items()}
        event = _event(token, known, left, right, float(change[token]), limit, right_out)
        if event is not None:
            events.append(event)
    return events


def _event(
    token: int,
    same: dict[str, bool | None],
    left: Decisions,
    right: Decisions,
    change: float,
    limit: float,
    right_out: Tensor,
) -> Event | None:
    a, b = _ids(left, token), _ids(right, token)
    margin = _margin(left, token)
    kind, reason = _kind(token, same, left, right, a, b)
    if kind is None:
        if change > limit:
            gone = not bool(right_out[token].any())
            if gone:
                kind, reason = "capacity", "the token's output is zero: no expert processed it"
            else:
                kind, reason = "lost", "equal decisions, another output"
        else:
            kind, reason = "rounding", "the output differs by rounding"
    return Event(token, kind, reason, a, b, margin)


def _ids(of: Decisions, token: int) -> tuple[int, ...]:
    return () if of.ids is None else tuple(of.ids[token].tolist())


def _kind(
    token: int,
    same: dict[str, bool | None],
    left: Decisions,
    right: Decisions,
    a: tuple[int, ...],
    b: tuple[int, ...],
) -> tuple[EventKind | None, str]:
    if _dropped(left, right, token, a, b):
        return "capacity", "an expert refused the token in one run only"
    compared_equal = same["logits"] if same["logits"] is not None else same["scores"]
    if sorted(a) != sorted(b):
        return _another_choice(token, compared_equal, same, left, right, a, b)
    if compared_equal is False:
        return _other_scores(token, left, right)
    if a != b:
        if _tied(left, token, {x for x, y in zip(a, b, strict=True) if x != y}):
            return "tie", "tied experts take other slots"
        return "order", "the same experts take other slots"
    if same["scores"] is False and compared_equal:
        return "selection", "equal router logits were turned into other scores"
    if same["weights"] is False and compared_equal:
        return "weights", "the same experts at equal scores get other weights"
    return None, ""


def _dropped(
    left: Decisions, right: Decisions, token: int, a: tuple[int, ...], b: tuple[int, ...]
) -> bool:
    """An empty slot, or a weight set to exactly zero, in one run only."""
    kept_a, kept_b = {e for e in a if e >= 0}, {e for e in b if e >= 0}
    if len(kept_a) != len(kept_b) and (kept_a < kept_b or kept_b < kept_a):
        return True
    if left.weights is None or right.weights is None or a != b:
        return False
    zero_a, zero_b = left.weights[token] == 0, right.weights[token] == 0
    return bool((zero_a != zero_b).any())


def _another_choice(
    token: int,
    compared_equal: bool | None,
    same: dict[str, bool | None],
    left: Decisions,
    right: Decisions,
    a: tuple[int, ...],
    b: tuple[int, ...],
) -> tuple[EventKind, str]:
    swapped = set(a) ^ set(b)
    names = " and ".join(str(e) for e in sorted(swapped))
    if compared_equal is not False and _tied(left, token, swapped):
        return "tie", f"experts {names} have exactly the same score"
    if compared_equal and _boundary_tie(left, token):
        return "tie", "the scores at rank k and k+1 are exactly the same"
    if same["scores"] or compared_equal:
        return "selection", "equal scores led to other experts"
    return _other_scores(token, left, right)


def _tied(of: Decisions, token: int, experts: set[int]) -> bool:
    """Are the swapped experts equal in logits, or in the scores that were compared? Flipped or
    masked columns make the compared scores unusable; the logits keep the experts' own order."""
    picked = [e for e in experts if e >= 0]
    for table in (of.logits, of.scores):
        if table is None or not picked:
            continue
        values = table[token][torch.tensor(picked)]
        if bool((values == values[0]).all()) and bool(torch.isfinite(values).all()):
            return True
    return False


def _boundary_tie(of: Decisions, token: int) -> bool:
    """Is the k-th best value also the next one, whatever the columns were called?"""
    for table in (of.logits, of.scores):
        if table is None or of.ids is None or of.ids.shape[-1] >= table.shape[-1]:
            continue
        k = of.ids.shape[-1]
        best = table[token].sort(descending=True).values
        if bool(best[k - 1] == best[k]):
            return True
    return False


def _other_scores(token: int, left: Decisions, right: Decisions) -> tuple[EventKind, str]:
    a = left.logits if left.logits is not None else left.scores
    b = right.logits if right.logits is not None else right.scores
    if a is None or b is None or a.shape != b.shape:
        return "scores", "router scores were not seen"
    x, y = a[token].double(), b[token].double()
    finite = torch.isfinite(x) & torch.isfinite(y)
    gap = float((x - y)[finite].abs().max()) if bool(finite.any()) else float("inf")
    scale = float(x[finite].abs().max()) if bool(finite.any()) else 0.0
    steps = gap / max(scale * torch.finfo(a.dtype).eps, 1e-30)
    return "scores", f"router scores differ by {gap:.3g} ({steps:.3g} rounding steps)"


def _margin(of: Decisions, token: int) -> float | None:
    """Worst chosen minus best rejected score of the token."""
    if of.scores is None or of.ids is None:
        return None
    row, ids = of.scores[token].double(), of.ids[token]
    ids = ids[ids >= 0]
    if len(ids) == 0 or len(ids) >= len(row):
        return None
    rest = row.clone()
    rest[ids] = -torch.inf
    return float(row[ids].min() - rest.max())


def sources(events: Sequence[Event]) -> list[Event]:
    """The events that arise at the router or the capacity limit itself."""
    return [e for e in events if e.kind in SOURCES]
