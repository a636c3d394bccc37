"""A small language model whose logits lie on the bf16 lattice: a function of a seed and a prefix.

It computes what real servers compute: bf16 logits, an fp32 log-softmax, one token a step. Every
``path`` (a kernel, a replica, a warm cache) rounds differently: it moves a quarter of the logits
by one ULP, always the same ones for the same prefix.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

VOCABULARY = 64
EOS = 0
_WORDS = tuple("<eos>" if i == EOS else f" w{i}" for i in range(VOCABULARY))
_IDS = {word: i for i, word in enumerate(_WORDS)}
_PIECES = re.compile(r" ?[^\s]+|\s")


def tokenize(text: str) -> tuple[int, ...]:
    """Ids of ``text``; words outside the vocabulary get ids from 1000 on."""
    return tuple(_IDS.get(piece, _foreign(piece)) for piece in _PIECES.findall(text))


def word(token: int) -> str:
    return _WORDS[token] if token < VOCABULARY else f" #{token}"


def _foreign(piece: str) -> int:
    return 1000 + int.from_bytes(hashlib.sha256(piece.encode()).digest()[:2])


def _generator(*parts: object) -> np.random.Generator:
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8]))


@dataclass
class Row:
    """What the model says after one prefix, kept for the next request with the same prefix.

    ``order`` holds ids by falling logit (equal ones by id); ``written`` what bodies were made.
    """

    logits: np.ndarray
    logprobs: list[float]
    order: list[int]
    written: dict[tuple[int, bool, int], dict[str, Any]] = field(default_factory=dict)


@lru_cache(maxsize=50_000)
def row(weights: str, path: str, prefix: tuple[int, ...], tie_share: float) -> Row:
    values = logits(weights, path, prefix, tie_share)
    order = [int(i) for i in np.argsort(-values, kind="stable")]
    return Row(values, [float(v) for v in log_softmax(values)], order)


def logits(weights: str, path: str, prefix: tuple[int, ...], tie_share: float) -> np.ndarray:
    """float32 values of bf16 logits, shape (VOCABULARY,). The empty path is the reference."""
    generator = _generator(weights, prefix)
    values = 4 + 4 * generator.standard_normal(VOCABULARY)
    values[EOS] -= 3
    bits = _bf16_bits(values)
    if generator.random() < tie_share:
        first, second = np.argsort(-values, kind="stable")[:2]
        bits[second] = bits[first]
    if path:
        noise = _generator(weights, path, prefix)
        moved = noise.random(VOCABULARY) < 0.25
        bits = bits + np.where(moved, noise.choice((-1, 1), VOCABULARY), 0)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _bf16_bits(values: np.ndarray) -> np.ndarray:
    """Round to nearest even, as int32 holding the 16 bits."""
    raw = values.astype(np.float32).view(np.uint32).astype(np.int64)
    return ((raw + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.int32)


def log_softmax(row: np.ndarray) -> np.ndarray:
    """In fp32, with the maximum taken out first, as torch does."""
    shifted = row - row.max()
    return shifted - np.log(np.exp(shifted).sum(dtype=np.float32))
