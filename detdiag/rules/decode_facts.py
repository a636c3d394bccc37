"""How engines break exact ties and who owns the random generator, as data.

The expected rate of exact ties follows from the logit dtype: near the top value the dtype can
hold only multiples of one step, so gaps fall on a grid and the smallest gap is zero.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

SOURCE: Final = Path(__file__).parent / "decode_facts.yaml"
COMPILED: Final = Path(__file__).parent / "decode_facts.json"
MANTISSA_BITS: Final = {"bfloat16": 7, "float16": 10, "float32": 23}


@dataclass(frozen=True, slots=True)
class DecodeFacts:
    """``greedy_repeats`` says whether equal logits give the same token on the greedy path."""

    engine: str
    greedy_rule: str
    greedy_repeats: bool
    sampled_rule: str
    rng: str
    seed: str
    source: str


def load_source() -> dict[str, Any]:
    """The YAML table as plain data."""
    from detdiag.rules.yamltext import parse_yaml

    return dict(parse_yaml(SOURCE.read_text(encoding="utf-8"), SOURCE)[0].value)


@lru_cache(maxsize=1)
def all_facts() -> dict[str, DecodeFacts]:
    """Facts by engine name."""
    return {
        engine: DecodeFacts(
            engine,
            row["greedy"]["rule"],
            row["greedy"]["same"],
            row["sampled"]["rule"],
            row["rng"],
            row["seed"],
            row["source"],
        )
        for engine, row in json.loads(COMPILED.read_text(encoding="utf-8")).items()
    }


def decode_facts(engine: str) -> DecodeFacts | None:
    """Facts of one engine (``vllm``, ``sglang``, ``hf`` ...), or None."""
    return all_facts().get(engine)


def step_logits(value: float, dtype: str) -> float:
    """Distance between neighbouring values of ``dtype`` at ``value``, in logits."""
    if value == 0 or not math.isfinite(value):
        return 0.0
    return float(2.0 ** (math.floor(math.log2(abs(value))) - MANTISSA_BITS[dtype]))


def expected_tie_rate(
    top: Sequence[float], margins_logits: Sequence[float], dtype: str
) -> float | None:
    """Share of positions expected to tie exactly once logits are rounded to ``dtype``.

    ``top`` and ``margins_logits`` are the best logit and the gap to the second one at each
    position, before rounding. Two values at a gap g fall on one grid point with probability
    max(0, 1 - g / step), the grid's place being random. None without positions.
    """
    if not top:
        return None
    chances = []
    for value, gap in zip(top, margins_logits, strict=True):
        step = step_logits(value, dtype)
        chances.append(max(0.0, 1.0 - gap / step) if step else float(gap == 0))
    return sum(chances) / len(chances)
