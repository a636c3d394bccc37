"""Serves rows under one policy, keeps time, and counts what differs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from torch import Tensor

from detdiag.probes._compare import difference, row_digests
from detdiag.remedies import repeatable
from detdiag.targets.local import LocalTarget

SEED: Final = 0


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


def timed(
    serving: Serving, rows: Sequence[Sequence[int]], width: int | None
) -> tuple[Tensor, float]:
    began = time.monotonic()
    out = serving.forward(rows, width)
    return out, time.monotonic() - began


def digest_of(value: Tensor) -> str:
    """64-bit hex digest of a tensor's bits."""
    return row_digests(value.reshape(1, -1))[0]
