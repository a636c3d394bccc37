"""Free-running generations, as the user calls them: solo repeats and batches of copies."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from detdiag.evidence.record import Event
from detdiag.probes._compare import row_digests
from detdiag.probes.conditions import AT_START, COPIES
from detdiag.probes.interface import ProbeContext
from detdiag.probes.runs import Reference, bench, free_observation, user_call
from detdiag.targets.generated import Generated

SOLO_REPEATS = 2
ARM_REPEATS = 2


def factors(ref: Reference, size: int, row: int, repeat: int, samples: bool) -> dict[str, Any]:
    """The batch probe's factor names, for a call of ``generate`` on ``size`` copies."""
    return {
        "batch_size": size,
        "row": row,
        "neighbours": COPIES,
        "padding_side": "left",
        "padded_length": len(ref.prompt_ids),
        "order": AT_START,
        "do_sample": samples,
        "repeat": repeat,
    }


def trials(
    context: ProbeContext, ref: Reference, sizes: list[int], left: list[str]
) -> Generator[Event, None, list[int]]:
    """Solo repeats, then each batch size; batches are left out while the call itself samples
    (two samples differ in any batch) and the forced runs speak for them.

    Returns the sizes whose logits differ from the solo run's where tokens still agree, if solo
    and that size both repeat.
    """
    digests: dict[int, set[tuple[str, ...]]] = {}
    samples = context.target.samples(**user_call(context))
    first: Generated | None = None
    for size in [1, *([] if samples else sorted(sizes, reverse=True))]:
        times = SOLO_REPEATS if size == 1 else ARM_REPEATS
        if context.remaining_s() < 1.2 * times * _cost(context, size):
            left.append(f"free-running batch of {size}" if size > 1 else "free-running solo")
            continue
        for repeat in range(times):
            made = _generate(context, ref, size)
            first = first or made[0]
            digests.setdefault(size, set()).add(_until_fork(made[0], first))
            for row in sorted({0, size - 1}):
                yield _observed(context, ref, made[row], size, row, repeat, samples)
                if made[row].token_ids != first.token_ids and repeat == 0:
                    _keep_output(context, ref, first, made[row], size, row)

    solo = digests.get(1, set())
    return [n for n, seen in digests.items() if len(solo) == len(seen) == 1 and _moved(seen, solo)]


def _until_fork(made: Generated, first: Generated) -> tuple[str, ...]:
    """Digests of the steps up to and at the first token that differs from ``first``'s."""
    steps = 0
    for a, b in zip(made.token_ids, first.token_ids, strict=False):
        steps += 1
        if a != b:
            break
    return row_digests(made.step_logits[:steps]) if steps else ()


def _moved(seen: set[tuple[str, ...]], solo: set[tuple[str, ...]]) -> bool:
    mine, base = next(iter(seen)), next(iter(solo))
    return mine != base[: len(mine)]


def _cost(context: ProbeContext, size: int) -> float:
    return bench(context).clock.s_per_step * context.plan.max_new_tokens * (0.5 + 0.5 * size)


def _generate(context: ProbeContext, ref: Reference, size: int) -> list[Generated]:
    began = time.monotonic()
    made = context.target.generate(
        [ref.prompt_ids] * size,
        max_new_tokens=context.plan.max_new_tokens,
        **user_call(context),
    )
    if size == 1:
        steps = max(len(made[0].token_ids), 1)
        bench(context).clock.s_per_step = (time.monotonic() - began) / steps
    return made


def _observed(
    context: ProbeContext,
    ref: Reference,
    made: Generated,
    size: int,
    row: int,
    repeat: int,
    samples: bool,
) -> Event:
    return free_observation(
        bench(context).next_id("free"),
        ref,
        made,
        factors(ref, size, row, repeat, samples),
        context.target.tokenizer,
    )


def _keep_output(
    context: ProbeContext, ref: Reference, a: Generated, b: Generated, size: int, row: int
) -> None:
    pairs = zip(a.token_ids, b.token_ids, strict=False)
    fork = next((i for i, (x, y) in enumerate(pairs) if x != y), None)
    context.scratch.setdefault("outputs", []).append(
        {
            "query": ref.prompt.id,
            "a": {"condition": "solo", "text": a.text, "token_ids": list(a.token_ids)},
            "b": {
                "condition": f"batch of {size}, row {row}" if size > 1 else "solo again",
                "text": b.text,
                "token_ids": list(b.token_ids),
            },
            "first_diff_token": fork
            if fork is not None
            else min(len(a.token_ids), len(b.token_ids)),
        }
    )
