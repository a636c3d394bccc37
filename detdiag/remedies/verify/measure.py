"""Inside the child: serve rows under one remedy and compare what the contrast compares."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from detdiag.probes._compare import bit_equal, difference
from detdiag.remedies import (
    canonical_body,
    fp32_head,
    fp32_router,
    frozen_clock,
    no_dropout,
    no_jitter,
    pinned_routing,
    repeatable,
    row_invariant,
    stateless,
    uncapped_experts,
)
from detdiag.targets.local import LocalTarget
from detdiag.targets.prompts import Prompt
from detdiag.trace.toggles import thread_count

SEED: Final = 0
CONTROLS: Final = 2
"""Reruns of each prompt's reference, where the contrast is not itself a rerun."""


@dataclass(slots=True)
class Tally:
    """Counts over compared pairs. ``positions`` and ``flips`` are of arg-max tokens; ``texts`` and
    ``texts_n`` of whole outputs; ``tokens`` were served in ``seconds`` (best of the repeats)."""

    k: int = 0
    n: int = 0
    control_k: int = 0
    control_n: int = 0
    flips: int = 0
    positions: int = 0
    texts: int = 0
    texts_n: int = 0
    max_abs_logit: float = 0.0
    max_ulp: float = 0.0
    tokens: int = 0
    seconds: float = 0.0
    pairs: list[dict[str, Any]] = field(default_factory=list)

    def compare(self, label: str, a: Tensor, b: Tensor) -> None:
        found = difference(a, b)
        self.n += 1
        self.k += not found.bit_equal
        self.flips += found.flips
        self.positions += found.positions
        self.max_abs_logit = max(self.max_abs_logit, found.max_abs)
        self.max_ulp = max(self.max_ulp, found.max_ulp)
        self.pairs.append({"pair": label, "bit_equal": found.bit_equal, "flips": found.flips})


class Serving:
    """Serves rows as ``policy`` says; keeps time."""

    def __init__(self, target: LocalTarget, job: Mapping[str, Any], tally: Tally) -> None:
        self.target = target
        self.policy = str(job.get("policy") or "")
        self.call = dict(job.get("call") or {})
        self.tally = tally
        contrast = job["contrast"]
        longest = max((len(p["row"]) for p in contrast["prompts"]), default=1)
        self.shape = (max([*contrast["sizes"], 2]), longest + 7)

    def forward(self, rows: Sequence[Sequence[int]], padded_length: int | None = None) -> Tensor:
        """Logits (tokens, vocabulary) of the first row's real tokens, on the CPU."""
        self._before()
        if self.policy == "batch_1":
            out = [self.target.forward([row])[0] for row in rows]
        elif self.policy == "constant_shape":
            n, length = self.shape
            filler = [rows[0][:1]] * (n - len(rows))
            out = self.target.forward([*rows, *filler], padded_length=length)
        else:
            out = self.target.forward(rows, padded_length=padded_length)
        return out[0].detach().cpu()

    def generate(self, row: Sequence[int], tokens: int) -> Any:
        self._before()
        return self.target.generate([row], max_new_tokens=tokens, **self.call)[0]

    def _before(self) -> None:
        if self.policy == "seeds":
            repeatable.seed_all(SEED)


def measure(target: LocalTarget, job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the job's contrast on ``target`` under its remedy.

    The answer holds the counts of :class:`Tally`, ``tokens_per_s``, ``cut`` (the deadline came
    first), ``facts`` and ``reference``: hex digests of what each prompt gives on its own.
    """
    tally = Tally()
    contrast = job["contrast"]
    deadline = time.monotonic() + float(job.get("limit_s") or 1e9)
    serving = Serving(target, job, tally)
    facts = facts_of(target)
    with contextlib.ExitStack() as stack:
        for name in job.get("wraps") or ():
            stack.enter_context(WRAPS[name](target.model, job))
        work = _RUNS[contrast["kind"]](serving, contrast, tally)
        cut, reference = _until(deadline, work)
    return {
        "k": tally.k, "n": tally.n, "control_k": tally.control_k, "control_n": tally.control_n,
        "flips": tally.flips, "positions": tally.positions,
        "texts": tally.texts, "texts_n": tally.texts_n,
        "max_abs_logit": tally.max_abs_logit, "max_ulp": tally.max_ulp, "pairs": tally.pairs,
        "tokens_per_s": tally.tokens / tally.seconds if tally.seconds else None,
        "cut": cut, "facts": facts, "reference": reference,
    }  # fmt: skip


def _until(deadline: float, work: Iterator[str | None]) -> tuple[bool, list[str]]:
    """Drive ``work`` to its end or the deadline; what it yields are reference digests."""
    reference: list[str] = []
    for step in work:
        if step is not None:
            reference.append(step)
        if time.monotonic() > deadline:
            return next(work, "end") != "end", reference
    return False, reference


Run = Callable[[Serving, Mapping[str, Any], Tally], Iterator[str | None]]


def _timed(
    serving: Serving, rows: Sequence[Sequence[int]], width: int | None
) -> tuple[Tensor, float]:
    began = time.monotonic()
    out = serving.forward(rows, width)
    return out, time.monotonic() - began


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
                out, wall = _timed(serving, rows, width)
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
            out, wall = _timed(serving, [prompt["row"]], None)
            walls.append(wall)
            tally.compare(f"{prompt['id']}: rerun {rerun + 1}", first, out[start:])
            yield None
        tally.seconds += min(walls)
        tally.tokens += len(prompt["row"])


def _history(serving: Serving, c: Mapping[str, Any], tally: Tally) -> Iterator[str | None]:
    """Each prompt first, after another request, and after a third."""
    for index, prompt in enumerate(c["prompts"]):
        row, start = list(prompt["row"]), prompt["start"]
        first, wall = _timed(serving, [row], None)
        yield digest_of(first[start:])
        others = [p["row"] for i, p in enumerate(c["prompts"]) if i != index] or [row[::-1]]
        walls = [wall]
        for repeat in range(2 * c["repeats"]):
            serving.forward([list(others[repeat % len(others)])])
            out, wall = _timed(serving, [row], None)
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


_RUNS: Final[dict[str, Run]] = {
    "size": _batched,
    "company": _batched,
    "neighbours": _batched,
    "padding": _batched,
    "repeat": _repeated,
    "history": _history,
    "generate": _generated,
    "input": _rendered,
}


def digest_of(value: Tensor) -> str:
    """64-bit hex digest of a tensor's bits."""
    from detdiag.probes._compare import row_digests

    return row_digests(value.reshape(1, -1))[0]


def _math(_model: Any, _job: Any) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.MATH)


WRAPS: Final[dict[str, Callable[[Any, Mapping[str, Any]], Any]]] = {
    "row_invariant": lambda model, _job: row_invariant(model),
    "row_invariant_modules": lambda model, job: row_invariant(model, modules=job["modules"]),
    "deterministic": lambda _m, _j: repeatable.deterministic_algorithms(),
    "cudnn": lambda _m, _j: repeatable.cudnn(),
    "precision": lambda _m, _j: repeatable.precision(),
    "math_attention": _math,
    "one_thread": lambda _m, _j: thread_count(1),
    "fp32_head": lambda model, _job: fp32_head(model),
    "fp32_router": lambda model, _job: fp32_router(model),
    "pinned_routing": lambda model, _job: pinned_routing(model),
    "uncapped_experts": lambda model, _job: uncapped_experts(model),
    "no_jitter": lambda model, _job: no_jitter(model),
    "no_dropout": lambda model, _job: no_dropout(model),
    "stateless": lambda model, _job: stateless(model),
    "frozen_clock": lambda _m, _j: frozen_clock("2026-01-01T12:00:00"),
}


def facts_of(target: LocalTarget) -> dict[str, Any]:
    """What decides which remedies apply."""
    from detdiag.moe.discover import may_have_experts

    with uncapped_experts(target.model) as capacity, no_jitter(target.model) as jitter:
        return {
            "device": target.device,
            "dtype": target.dtype,
            "attention": getattr(target.model.config, "_attn_implementation", None),
            "threads": torch.get_num_threads(),
            "experts": may_have_experts(target.model),
            "capacity": list(capacity),
            "jitter": list(jitter),
        }
