"""One trial of one prompt: the reference it is measured against, the run, the observation."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from detdiag.evidence.observation import Candidate, Observation, Output, Position
from detdiag.probes._compare import row_digests
from detdiag.probes.interface import ProbeContext
from detdiag.targets.generated import Generated
from detdiag.targets.local import LocalTarget, Prompt
from detdiag.targets.padding import Padded

TOP = 3
"""Alternatives kept per position."""

TEACHER_FORCED = ":teacher-forced"
"""Suffix of the query id under which forced runs are recorded (free runs have the bare id)."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A prompt with its own greedy continuation, which every forced run is fed with.

    ``row`` is prompt plus continuation without its last token; logits from ``start`` on predict
    the continuation, one position a token.
    """

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    continuation: tuple[int, ...]
    cut: bool = False
    """Shorter than the plan asks for, for want of time."""

    @property
    def row(self) -> tuple[int, ...]:
        return self.prompt_ids + self.continuation[:-1]

    @property
    def start(self) -> int:
        return len(self.prompt_ids) - 1

    @property
    def query(self) -> str:
        return self.prompt.id + TEACHER_FORCED


@dataclass(frozen=True, slots=True)
class Run:
    """Logits of the positions that predict the continuation, on the CPU, and their digests."""

    logits: Tensor
    digests: tuple[str, ...]
    wall_s: float


@dataclass(slots=True)
class Clock:
    """What a forwarded token costs here, so that a probe can stop before it overruns."""

    s_per_token: float = 0.0
    s_per_step: float = 0.0

    def saw(self, tokens: int, wall_s: float) -> None:
        self.s_per_token = max(self.s_per_token * 0.8, wall_s / max(tokens, 1))

    def forward_s(self, rows: int, tokens: int, times: int = 1) -> float:
        """Expected wall seconds of ``times`` forwards of ``rows`` x ``tokens``."""
        return self.s_per_token * rows * tokens * times


@dataclass(slots=True)
class Bench:
    """What the local probes share through ``context.scratch``.

    ``base`` holds the undisturbed solo runs per query; ``unstable`` is set by the repeatability
    check; ``serial`` numbers observations.
    """

    target: LocalTarget
    clock: Clock = field(default_factory=Clock)
    references: dict[str, Reference] = field(default_factory=dict)
    base: dict[str, list[Run]] = field(default_factory=dict)
    serial: int = 0

    def next_id(self, prefix: str) -> str:
        self.serial += 1
        return f"{prefix}-{self.serial}"


def bench(context: ProbeContext) -> Bench:
    """The shared bench of this walk, made on first use."""
    found = context.scratch.get("bench")
    if found is None:
        context.target.remember()
        found = context.scratch["bench"] = Bench(context.target)
    return found


def user_call(context: ProbeContext) -> dict[str, Any]:
    """The plan's own ``generate`` arguments but for the length, which the probes set."""
    return {k: v for k, v in context.plan.generate_kwargs.items() if k != "max_new_tokens"}


REFERENCE_SHARE = 0.15
"""Share of a probe's remaining time that one reference generation may take."""
MIN_TOKENS = 4


def reference(context: ProbeContext, prompt: Prompt) -> Reference:
    """The prompt's greedy continuation, generated once a walk (solo, the library's argmax).

    It is as long as ``plan.max_new_tokens``, or as the time left allows (MIN_TOKENS at least),
    measured on MIN_TOKENS after a first call that pays for what only a first call does.
    """
    shared = bench(context)
    if prompt.id not in shared.references:
        ids = context.target.encode(prompt)
        wanted = context.plan.max_new_tokens
        if shared.clock.s_per_step == 0.0:
            _greedy(context, ids, 1)
            _greedy(context, ids, min(MIN_TOKENS, wanted))
        allowed = REFERENCE_SHARE * max(context.remaining_s(), 0.0)
        affordable = int(allowed / max(shared.clock.s_per_step, 1e-6))
        tokens = max(min(wanted, affordable), min(wanted, MIN_TOKENS))
        made = _greedy(context, ids, tokens)
        cut = len(made) == tokens < wanted
        shared.references[prompt.id] = Reference(prompt, ids, made or (ids[-1],), cut)
    return shared.references[prompt.id]


def _greedy(context: ProbeContext, ids: tuple[int, ...], tokens: int) -> tuple[int, ...]:
    began = time.monotonic()
    made = context.target.generate([ids], max_new_tokens=tokens, **GREEDY)[0].token_ids
    bench(context).clock.s_per_step = (time.monotonic() - began) / max(len(made), 1)
    return made


GREEDY: dict[str, Any] = {"do_sample": False, "num_beams": 1}


def run_padded(
    target: LocalTarget,
    batch: Padded,
    start: int,
    rows: Sequence[int] = (0,),
    *,
    model: Any = None,
    clock: Clock | None = None,
) -> list[Run]:
    """One forward; a :class:`Run` for each of ``rows`` with its positions from ``start`` on."""
    began = time.monotonic()
    logits = target.forward_padded(batch, model=model)
    kept = [logits[row][start:].detach().cpu() for row in rows]
    wall = time.monotonic() - began
    if clock is not None:
        clock.saw(batch.input_ids.numel(), wall)
    return [Run(x, row_digests(x), wall) for x in kept]


def positions_of(logits: Tensor, chosen: Sequence[int], tokenizer: Any) -> tuple[Position, ...]:
    """Chosen token and the best :data:`TOP` alternatives by log-softmax in float64."""
    if logits.numel() == 0:
        return ()
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    top = logprobs.topk(min(TOP, logprobs.shape[-1]), dim=-1)
    out = []
    for step, token in enumerate(chosen):
        out.append(
            Position(
                token=_piece(tokenizer, token),
                id=token,
                logprob=float(logprobs[step, token]),
                top=tuple(
                    Candidate(_piece(tokenizer, int(i)), int(i), float(v))
                    for v, i in zip(top.values[step], top.indices[step], strict=True)
                ),
            )
        )
    return tuple(out)


@lru_cache(maxsize=65536)
def _piece(tokenizer: Any, token: int) -> str:
    return str(tokenizer.decode([token]))


def forced_observation(
    ident: str, ref: Reference, run: Run, factors: Mapping[str, Any], tokenizer: Any, **extra: Any
) -> Observation:
    """A teacher-forced run: ``token_ids`` are the arg-max predictions, one per position."""
    chosen = run.logits.argmax(-1).tolist()
    return Observation(
        id=ident,
        query=ref.query,
        surface="hf.forward",
        prompt_token_ids=ref.row,
        output=Output(
            token_ids=tuple(chosen),
            positions=positions_of(run.logits, chosen, tokenizer),
            logit_digests=run.digests,
        ),
        factors=dict(factors),
        **extra,
    )


def free_observation(
    ident: str,
    ref: Reference,
    made: Generated,
    factors: Mapping[str, Any],
    tokenizer: Any,
    **extra: Any,
) -> Observation:
    """A ``generate`` run as the user makes it."""
    return Observation(
        id=ident,
        query=ref.prompt.id,
        surface="hf.generate_kwargs",
        prompt_token_ids=ref.prompt_ids,
        output=Output(
            text=made.text,
            token_ids=made.token_ids,
            finish_reason=made.finish_reason,
            positions=positions_of(made.step_logits.cpu(), made.token_ids, tokenizer),
            logit_digests=row_digests(made.step_logits) if len(made.step_logits) else (),
        ),
        factors=dict(factors),
        **extra,
    )
