"""Do two outputs differ, at which level, where first and by how much?

Bits decide: text, else token ids, else log-probabilities or logits to the last bit at the
positions before the first fork. A channel that one side lacks is not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from detdiag.evidence.observation import Observation, Output, Position

Kind = Literal["none", "bitwise", "token", "text"]
Level = Literal["bits", "output"]
STRENGTH: dict[str, int] = {"none": 0, "bitwise": 1, "token": 2, "text": 3}


@dataclass(frozen=True, slots=True)
class Difference:
    """``kind`` None means that the two share no channel. ``fork`` is the first position whose
    token differs; ``max_nat`` the largest log-probability change of a token at or before it."""

    kind: Kind | None
    fork: int | None = None
    max_nat: float | None = None


def compare(a: Output, b: Output) -> Difference:
    """Compare two outputs of one query."""
    fork = first_fork(a, b)
    max_nat = largest_change(a, b, fork)
    levels = (_text_differs(a, b), _tokens_differ(a, b), _bits_differ(a, b, fork))
    for kind, differs in zip(("text", "token", "bitwise"), levels, strict=True):
        if differs:
            return Difference(kind, fork, max_nat)  # type: ignore[arg-type]
    if all(differs is None for differs in levels):
        return Difference(None)
    return Difference("none", None, max_nat)


def _text_differs(a: Output, b: Output) -> bool | None:
    return None if a.text is None or b.text is None else a.text != b.text


def _tokens_differ(a: Output, b: Output) -> bool | None:
    left, right = _comparable_tokens(a, b)
    return None if left is None or right is None else left != right


def _comparable_tokens(
    a: Output, b: Output
) -> tuple[tuple[object, ...] | None, tuple[object, ...] | None]:
    """Both sides' tokens in one spelling: ids if both have them, else the position strings."""
    if a.token_ids is not None and b.token_ids is not None:
        return a.token_ids, b.token_ids
    if a.positions and b.positions:
        for key in ("id", "token"):
            left = tuple(getattr(p, key) for p in a.positions)
            right = tuple(getattr(p, key) for p in b.positions)
            if None not in left and None not in right:
                return left, right
    return None, None


def first_fork(a: Output, b: Output) -> int | None:
    """Index of the first generated token that differs (also where one output ends early)."""
    left, right = _comparable_tokens(a, b)
    if left is None or right is None or left == right:
        return None
    for index, (x, y) in enumerate(zip(left, right, strict=False)):
        if x != y:
            return index
    return min(len(left), len(right))


def _shared(a: Sequence[object], b: Sequence[object], fork: int | None) -> int:
    """Positions computed from the same context: up to and including the fork."""
    n = min(len(a), len(b))
    return n if fork is None else min(n, fork + 1)


def _bits_differ(a: Output, b: Output, fork: int | None) -> bool | None:
    verdict: bool | None = None
    if a.logit_digests is not None and b.logit_digests is not None:
        n = _shared(a.logit_digests, b.logit_digests, fork)
        verdict = a.logit_digests[:n] != b.logit_digests[:n]
    if not verdict and a.positions and b.positions:
        compared = [
            vectors_equal(p, q)
            for p, q in zip(
                a.positions[: _shared(a.positions, b.positions, fork)],
                b.positions,
                strict=False,
            )
        ]
        known = [c for c in compared if c is not None]
        if known:
            verdict = not all(known)
    return verdict


def own_key(position: Position) -> object:
    """The chosen token as its alternatives are spelled: by id only where they carry ids."""
    if position.id is None or any(c.id is None for c in position.top):
        return position.token
    return position.id


def vector(position: Position) -> dict[object, float] | None:
    """Log-probabilities by token of one position; None where the server sent none."""
    by_id = all(c.id is not None for c in position.top)
    values: dict[object, float] = {
        (c.id if by_id else c.token): c.logprob for c in position.top if c.logprob > -9990.0
    }
    own = own_key(position)
    if position.logprob is not None and own is not None and position.logprob > -9990.0:
        values.setdefault(own, position.logprob)
    return values or None


def vectors_equal(p: Position, q: Position) -> bool | None:
    """Bit equality of two positions' log-probabilities over the tokens that both list.

    A server lists its top k and may add the chosen token, so two lists of one distribution can
    differ in their last entry; only a token that both list can show a difference, except that
    another top set at equal length is one.
    """
    left, right = vector(p), vector(q)
    if left is None or right is None:
        return None
    common = left.keys() & right.keys()
    if any(left[t] != right[t] for t in common):
        return False
    if not common:
        return False
    return _only_tail_differs(left, right)


def _only_tail_differs(left: dict[object, float], right: dict[object, float]) -> bool:
    """Tokens that one side lists alone may only lie at or below the other side's floor."""
    for mine, other in ((left, right), (right, left)):
        floor = min(other.values())
        if any(value > floor for token, value in mine.items() if token not in other):
            return False
    return True


def largest_change(a: Output, b: Output, fork: int | None) -> float | None:
    """Largest absolute log-probability change (nats) over shared tokens up to the fork."""
    if not a.positions or not b.positions:
        return None
    best: float | None = None
    for p, q in zip(
        a.positions[: _shared(a.positions, b.positions, fork)], b.positions, strict=False
    ):
        left, right = vector(p), vector(q)
        if left is None or right is None:
            continue
        for token in left.keys() & right.keys():
            change = abs(left[token] - right[token])
            best = change if best is None else max(best, change)
    return best


def channels_of(output: Output, level: Level) -> str:
    """The channels that decide at ``level``; only equal sets make classes comparable."""
    if level == "output":
        return "text" if output.text is not None else "tokens"
    held = {
        "text": output.text is not None,
        "tokens": output.token_ids is not None,
        "logprobs": bool(output.positions),
        "logits": output.logit_digests is not None,
    }
    return "+".join(name for name, present in held.items() if present)


def classify(observations: Sequence[Observation], *, level: Level = "bits") -> list[int]:
    """Outcome class of each observation: equal numbers mean that no difference was found.

    ``level`` "output" looks at text, or tokens where there is no text. Observations that carry
    no channel at all get the class -1.
    """
    representatives: list[Output] = []
    members: dict[object, int] = {}
    classes: list[int] = []
    for observation in observations:
        output = observation.output if level == "bits" else _coarse(observation.output)
        key = _key(output)
        if key is None:
            classes.append(-1)
            continue
        if key not in members:
            members[key] = _find_class(output, representatives)
        classes.append(members[key])
    return classes


def _coarse(output: Output) -> Output:
    if output.text is not None:
        return Output(text=output.text)
    return Output(token_ids=output.token_ids, positions=_tokens_only(output.positions))


def _tokens_only(positions: tuple[Position, ...] | None) -> tuple[Position, ...] | None:
    if positions is None:
        return None
    return tuple(Position(token=p.token, id=p.id, logprob=None) for p in positions)


def _key(output: Output) -> object:
    if (
        output.text is None
        and output.token_ids is None
        and not output.positions
        and not output.logit_digests
    ):
        return None
    return (output.text, output.token_ids, output.positions, output.logit_digests)


def _find_class(output: Output, representatives: list[Output]) -> int:
    for index, other in enumerate(representatives):
        if compare(output, other).kind == "none":
            return index
    representatives.append(output)
    return len(representatives) - 1
