"""What each kind of contrast asks of a model: arms to serve and what they are compared with."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from detdiag.probes._compare import bit_equal
from detdiag.remedies import canonical_body
from detdiag.remedies.verify.serving import SEED, Serving, Tally, digest_of, timed
from detdiag.targets.local import LocalTarget
from detdiag.targets.prompts import Prompt

CONTROLS: Final = 2
"""Reruns of each prompt's reference, where the contrast is not itself a rerun."""
Run = Callable[[Serving, Mapping[str, Any], Tally], Iterator[str | None]]
"""Yields reference digests, or None between two steps at which a deadline may cut in."""


def _arms(prompt: Mapping[str, Any], others: Sequence[Sequence[int]], c: Mapping[str, Any]) -> Any:
    """(label, rows, padded length, label of what it is compared with) for a batched contrast."""
    row, kind = list(prompt["row"]), c["kind"]
    size = min(c["sizes"], default=2)
    wide = len(row) + 7
    fits = [_fit(o, len(row)) for o in others] or [row[::-1]]
    if kind in ("size", "company"):
        yield from ((f"batch of {n}", [row] * n, None, "alone") for n in c["sizes"])
    if kind in ("neighbours", "company"):
        base = "alone" if kind == "company" else f"batch of {size}"
        if kind == "neighbours":
            yield base, [row] * size, None, ""
        yield f"batch of {size}, other text", [row, *[fits[0]] * (size - 1)], None, base
        noise = _noise(len(row), c)
        yield f"batch of {size}, random tokens", [row, *[noise] * (size - 1)], None, base
    if kind == "padding":
        yield "padded", [row], wide, "alone"
        yield f"batch of {size}, padded", [row] * size, wide, "alone"


def _noise(length: int, contrast: Mapping[str, Any]) -> list[int]:
    from detdiag.probes.conditions import noise_row

    return list(noise_row(length, int(contrast.get("vocabulary") or 64), SEED))


def _fit(row: Sequence[int], length: int) -> list[int]:
    return (list(row) * -(-length // len(row)))[:length]


def _batched(serving: Serving, c: Mapping[str, Any], tally: Tally) -> Iterator[str | None]:
    vocabulary = int(serving.target.model.config.get_text_config().vocab_size)
    c = {**c, "vocabulary": vocabulary}
    for index, prompt in enumerate(c["prompts"]):
        others = [p["row"] for i, p in enumerate(c["prompts"]) if i != index]
        start = prompt["start"]
        seen = {"alone": serving.forward([prompt["row"]])[start:]}
        yield digest_of(seen["alone"])
        for _ in range(CONTROLS):
            tally.control_n += 1
            again = serving.forward([prompt["row"]])[start:]
            tally.control_k += not bit_equal(again, seen["alone"])
        for label, rows, width, against in _arms(prompt, others, c):
            walls = []
            for repeat in range(c["repeats"]):
                out, wall = timed(serving, rows, width)
                walls.append(wall)
                seen[label] = out[start:]
                if against:
                    name = f"{prompt['id']}: {label} against {against}, {repeat + 1}"
                    tally.compare(name, seen[against], seen[label])
            tally.seconds += min(walls)
            tally.tokens += sum(map(len, rows))
            yield None


def _repeated(serving: Serving, c: Mapping[str, Any], tally: Tally) -> Iterator[str | None]:
    reruns = max(2, -(-int(c["reruns"]) // max(len(c["prompts"]), 1)))
    for prompt in c["prompts"]:
        start, walls = prompt["start"], []
        serving.forward([prompt["row"]])  # what only a first call does
        first = serving.forward([prompt["row"]])[start:]
        yield digest_of(first)
        for rerun in range(reruns):
            out, wall = timed(serving, [prompt["row"]], None)
            walls.append(wall)
            tally.compare(f"{prompt['id']}: rerun {rerun + 1}", first, out[start:])
            yield None
        tally.seconds += min(walls)
        tally.tokens += len(prompt["row"])


def _history(serving: Serving, c: Mapping[str, Any], tally: Tally) -> Iterator[str | None]:
    """Each prompt first, after another request, and after a third."""
    for index, prompt in enumerate(c["prompts"]):
        row, start = list(prompt["row"]), prompt["start"]
        first, wall = timed(serving, [row], None)
        yield digest_of(first[start:])
        others = [p["row"] for i, p in enumerate(c["prompts"]) if i != index] or [row[::-1]]
        walls = [wall]
        for repeat in range(2 * c["repeats"]):
            serving.forward([list(others[repeat % len(others)])])
            out, wall = timed(serving, [row], None)
            walls.append(wall)
            name = f"{prompt['id']}: after {repeat + 1} other requests"
            tally.compare(name, first[start:], out[start:])
            yield None
        tally.seconds += min(walls)
        tally.tokens += len(row)


def _generated(serving: Serving, c: Mapping[str, Any], tally: Tally) -> Iterator[str | None]:
    reruns = max(2, -(-int(c["reruns"]) // max(len(c["prompts"]), 1)))
    for prompt in c["prompts"]:
        row = prompt["row"][: prompt["start"] + 1]
        first = serving.generate(row, c["new_tokens"])
        yield digest_of(torch.tensor(first.token_ids))
        for rerun in range(reruns):
            began = time.monotonic()
            made = serving.generate(row, c["new_tokens"])
            tally.seconds += time.monotonic() - began
            tally.tokens += len(made.token_ids)
            differs = made.token_ids != first.token_ids
            tally.n += 1
            tally.texts_n += 1
            tally.k += differs
            tally.texts += differs
            label = f"{prompt['id']}: call {rerun + 2}"
            tally.pairs.append({"pair": label, "token_equal": not differs})
            yield None


def _rendered(serving: Serving, c: Mapping[str, Any], tally: Tally) -> Iterator[str | None]:
    """Token ids of prompts rendered again, and of two clients' requests."""
    target = serving.target
    canonical = serving.policy == "canonical"

    def tell(label: str, a: Any, b: Any) -> None:
        tally.n += 1
        tally.k += a != b
        tally.texts_n += 1
        tally.texts += a != b
        tally.pairs.append({"pair": label, "token_equal": a == b})

    for prompt in target.prompts:
        first = target.encode(prompt)
        yield digest_of(torch.tensor(first))
        for repeat in range(c["repeats"]):
            time.sleep(0.002)
            tell(f"{prompt.id}: rendered again, {repeat + 1}", first, target.encode(prompt))
    bodies = [json.loads(Path(p).read_bytes()) for p in c["requests"]]
    sent = [_ids_of(target, canonical_body(b) if canonical else b) for b in bodies]
    for other in sent[1:]:
        tell("one question from two clients", sent[0], other)
    yield None


def _ids_of(target: LocalTarget, body: Mapping[str, Any]) -> tuple[int, ...]:
    if body.get("messages"):
        return target.encode(Prompt("request", None, tuple(body["messages"])))
    return target.encode(Prompt("request", str(body.get("prompt") or "")))


RUNS: Final[dict[str, Run]] = {
    "size": _batched,
    "company": _batched,
    "neighbours": _batched,
    "padding": _batched,
    "repeat": _repeated,
    "history": _history,
    "generate": _generated,
    "input": _rendered,
}
