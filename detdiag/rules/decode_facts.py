"""How engines break exact ties and who owns the random generator, as data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

SOURCE: Final = Path(__file__).parent / "decode_facts.yaml"
COMPILED: Final = Path(__file__).parent / "decode_facts.json"


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
