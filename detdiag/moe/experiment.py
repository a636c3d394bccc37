"""The routing experiment on one row of tokens: who differs, at which inputs, and does it matter.

Every routed block of every run is replayed on its own input bits, alone and repeated. What
differs there is the block's own doing; what differs only between the runs was handed to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from detdiag.moe.capture import BlockCall, Capture, Graft, capture
from detdiag.moe.decisions import Decisions
from detdiag.moe.discover import Router
from detdiag.moe.judge import Event, judge, output_change, rounding_limit, rows_equal, sources
from detdiag.moe.replay import (
    changed_inputs,
    copies,
    input_of,
    one_row,
    output_of,
    replay,
    row_view,
    with_row,
    with_rows,
)
from detdiag.targets.local import LocalTarget
from detdiag.targets.padding import Padded

BLOCK_REPEATS: Final = 4


@dataclass(frozen=True, slots=True)
class Setup:
    """One condition: ``rows`` in a batch, of which ``tested`` is the row under test. ``factor``
    is what differs from the solo run ("repeat" for the solo run itself)."""

    name: str
    rows: tuple[tuple[int, ...], ...]
    tested: int = 0
    factor: str = "repeat"
    padded_length: int | None = None


@dataclass(slots=True)
class Run:
    """One traced forward. ``logits`` (tokens, vocabulary) of the tested row's real tokens."""

    setup: Setup
    batch: Padded
    logits: Tensor
    calls: dict[int, BlockCall]

    @property
    def width(self) -> int:
        return int(self.batch.input_ids.shape[1])

    def view(self, router: Router) -> tuple[Decisions, Tensor]:
        """Decisions and output of the tested row, real tokens only."""
        taken, output = row_view(self.calls[router.index], self.setup.tested, self.width)
        real = self.batch.real(self.setup.tested)
        return taken.rows(real), output[real]


@dataclass(slots=True)
class BlockFindings:
    """Events of one block in one run, tokens counted from the row's first real token.

    ``inherited`` are tokens that other experts process than in the solo run, although the block
    decides the same for them alone. ``random`` says that it drew random numbers.
    """

    router: Router
    events: list[Event] = field(default_factory=list)
    inherited: list[int] = field(default_factory=list)
    random: bool = False
    repeats: bool = True
    from_repeat: bool = False

    @property
    def rounded(self) -> list[int]:
        """Inherited flips at equal input, where only the router's product rounds otherwise."""
        moved = {e.token for e in self.events if e.kind == "scores" and e.left != e.right}
        return [t for t in self.inherited if t in moved]


def run(
    target: LocalTarget,
    routers: Sequence[Router],
    setup: Setup,
    *,
    graft: Graft | None = None,
    keep: bool = True,
) -> Run:
    """One traced forward of ``setup``."""
    batch = target.pad(setup.rows, padded_length=setup.padded_length)
    with capture(target.model, routers, keep=keep, graft=graft) as made:
        logits = target.forward_padded(batch)[setup.tested]
    return Run(setup, batch, logits.detach(), _last_calls(made))


def _last_calls(made: Capture) -> dict[int, BlockCall]:
    return {call.router.index: call for call in made.calls}


def repeat_events(target: LocalTarget, base: Run, router: Router) -> BlockFindings:
    """Replay the block on one input again and again at one shape."""
    call = base.calls[router.index]
    found = BlockFindings(router, from_repeat=True)
    real = base.batch.real(base.setup.tested)
    left, left_out = base.view(router)
    by_token: dict[int, Event] = {}
    for _ in range(BLOCK_REPEATS):
        again = replay(target.model, call, watch_random=True)
        found.random |= bool(again.random)
        right, right_out = row_view(again, base.setup.tested, base.width)
        for event in judge(left, left_out, right.rows(real), right_out[real]):
            by_token.setdefault(event.token, event)
    found.events = [by_token[t] for t in sorted(by_token)]
    found.repeats = not by_token
    return found


def batch_events(
    target: LocalTarget, solo: Run, run: Run, router: Router, *, check_repeat: bool = True
) -> BlockFindings:
    """Replay the tested row alone on the input that it had in the batch."""
    call = run.calls[router.index]
    rows, width = len(run.setup.rows), run.width
    row, real = run.setup.tested, run.batch.real(run.setup.tested)
    found = BlockFindings(router)
    if check_repeat:
        found.repeats = _repeats(target, call, run, router)
    alone_call = replay(target.model, call, one_row(row, rows, width))
    alone, alone_out = row_view(alone_call, 0, width)
    alone, alone_out = alone.rows(real), alone_out[real]
    inside, inside_out = run.view(router)
    found.events = judge(alone, alone_out, inside, inside_out)
    lost = [e.token for e in found.events if e.kind == "lost"]
    if lost and rows > 1 and found.repeats:
        dropped = _refused_copies(target, call, run, lost, alone_out)
        found.events = [_as_drop(e) if e.token in dropped else e for e in found.events]
    found.inherited = _inherited(solo, router, inside, found.events)
    return found


def _repeats(target: LocalTarget, call: BlockCall, run: Run, router: Router) -> bool:
    again = replay(target.model, call)
    right, right_out = row_view(again, run.setup.tested, run.width)
    real = run.batch.real(run.setup.tested)
    left, left_out = run.view(router)
    return not judge(left, left_out, right.rows(real), right_out[real])


def _as_drop(event: Event) -> Event:
    return Event(
        event.token,
        "capacity",
        "equal copies of the token get other outputs by place: some are refused",
        event.left,
        event.right,
        event.margin,
    )


def _refused_copies(
    target: LocalTarget, call: BlockCall, run: Run, tokens: Sequence[int], alone: Tensor
) -> set[int]:
    """Tokens of which some copies in one batch come out as alone and others far from it.

    A scale, a norm or a kernel that depends on the batch treats equal rows alike; only a queue
    that is full for some of them does not.
    """
    rows, width = len(run.setup.rows), run.width
    filled = replay(target.model, call, copies(run.setup.tested, rows, width))
    real = run.batch.real(run.setup.tested)
    outputs = output_of(filled).reshape(rows, width, -1)[:, real]
    limit = rounding_limit(alone.dtype)
    refused = set()
    for token in tokens:
        same = alone[token].expand(rows, -1)
        change = output_change(same, outputs[:, token])
        if bool((change <= limit).any()) and bool((change > limit).any()):
            refused.add(token)
    return refused


def _inherited(solo: Run, router: Router, inside: Decisions, events: Sequence[Event]) -> list[int]:
    before, _ = solo.view(router)
    if before.ids is None or inside.ids is None or before.ids.shape != inside.ids.shape:
        return []
    moved = (before.ids.sort(-1).values != inside.ids.sort(-1).values).any(-1)
    own = {e.token for e in sources(events)}
    return [t for t in moved.nonzero().flatten().tolist() if t not in own]


@dataclass(frozen=True, slots=True)
class Effect:
    """What an intervention does to the logits, as lengths of the difference from the solo run.

    ``shift`` before and ``left`` after; ``flips`` count arg-max changes. ``share`` of the shift
    that the intervention takes away, 0 to 1.
    """

    shift: float
    left: float
    flips: int
    flips_left: int

    @property
    def share(self) -> float:
        return 0.0 if self.shift == 0 else max(0.0, 1 - self.left / self.shift)

    @property
    def restores(self) -> bool:
        """It removes every bit, or at least half of the shift and every flip."""
        if self.left == 0 and self.shift > 0:
            return True
        return self.share >= 0.5 and (self.flips_left == 0 or self.flips_left < self.flips)


def effect(solo: Tensor, changed: Tensor, fixed: Tensor) -> Effect:
    """Compare (tokens, vocabulary) logits; equal bits give length 0."""
    return Effect(
        _distance(solo, changed),
        _distance(solo, fixed),
        _flips(solo, changed),
        _flips(solo, fixed),
    )


def _distance(a: Tensor, b: Tensor) -> float:
    if torch.equal(a, b):
        return 0.0
    return float((a.double() - b.double()).norm())


def _flips(a: Tensor, b: Tensor) -> int:
    return int((a.argmax(-1) != b.argmax(-1)).sum())


def alone_graft(setup: Setup, width: int, refusing: set[int], real: slice) -> Graft:
    """In a batched run: the tested row's source tokens continue as if the row were alone.

    ``refusing`` are the blocks that are known to refuse tokens, where a lost output counts.
    """
    rows, row = len(setup.rows), setup.tested

    def graft(call: BlockCall, result: object) -> object:
        assert call.again is not None
        args, kwargs = changed_inputs(call, one_row(row, rows, width))
        alone, alone_out = row_view(call.again(*args, **kwargs), 0, width)
        inside, inside_out = row_view(call, row, width)
        mask = _source_mask(alone, alone_out, inside, inside_out, call, refusing, real)
        if not bool(mask.any()):
            return result
        return with_rows(result, slice(row * width, (row + 1) * width), mask, alone_out)

    return graft


def batch_graft(run: Run, refusing: set[int]) -> Graft:
    """In a solo run: source tokens continue as they would in the batch of ``run``."""
    rows, row, width = len(run.setup.rows), run.setup.tested, run.width
    real = run.batch.real(row)

    def graft(call: BlockCall, result: object) -> object:
        assert call.again is not None
        batch = run.calls[call.router.index]
        args, kwargs = changed_inputs(batch, with_row(row, rows, width, input_of(call)))
        inside, inside_out = row_view(call.again(*args, **kwargs), row, width)
        alone, alone_out = row_view(call, 0, width)
        mask = _source_mask(alone, alone_out, inside, inside_out, call, refusing, real)
        if not bool(mask.any()):
            return result
        return with_rows(result, slice(0, width), mask, inside_out)

    return graft


def pinned_graft(base: Run) -> Graft:
    """In a repetition of ``base``: source tokens at equal inputs continue as they did there."""
    row, width = base.setup.tested, base.width
    tokens = slice(row * width, (row + 1) * width)

    def graft(call: BlockCall, result: object) -> object:
        ref = base.calls[call.router.index]
        same = rows_equal(input_of(ref)[tokens], input_of(call)[tokens])
        if same is None:
            return result
        left, left_out = row_view(ref, row, width)
        right, right_out = row_view(call, row, width)
        mask = same & _source_mask(
            left, left_out, right, right_out, call, set(), slice(None), same_shape=True
        )
        return with_rows(result, tokens, mask, left_out) if bool(mask.any()) else result

    return graft


def _source_mask(
    left: Decisions,
    left_out: Tensor,
    right: Decisions,
    right_out: Tensor,
    call: BlockCall,
    refusing: set[int],
    real: slice,
    *,
    same_shape: bool = False,
) -> Tensor:
    events = judge(left, left_out, right, right_out)
    wanted = {e.token for e in sources(events)}
    if same_shape:
        wanted |= {e.token for e in events if e.kind == "scores"}
    if call.router.index in refusing:
        wanted |= {e.token for e in events if e.kind == "lost"}
    mask = torch.zeros(left_out.shape[0], dtype=torch.bool, device=left_out.device)
    allowed = set(range(*real.indices(left_out.shape[0])))
    chosen = sorted(wanted & allowed)
    if chosen:
        mask[torch.tensor(chosen, device=mask.device)] = True
    return mask
