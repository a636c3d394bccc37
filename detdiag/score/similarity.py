"""How alike are two outputs? Edit similarity (rapidfuzz), BLEU and chrF (sacrebleu)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from detdiag.score.pairs import Pair

LONGEST: Final = 20_000
"""Characters of an output that are compared."""


def edit_similarity(a: str, b: str) -> float:
    """1 - Levenshtein distance / length of the longer, in characters; 1 for two empty texts."""
    from rapidfuzz.distance import Levenshtein

    return float(Levenshtein.normalized_similarity(a[:LONGEST], b[:LONGEST]))


def bleu(a: str, b: str) -> float:
    """Sentence BLEU of sacrebleu (effective order), 0 to 1, mean of both directions.

    BLEU takes a hypothesis and a reference; two runs have no such roles.
    """
    scorer, a, b = _scorers()[0], a[:LONGEST], b[:LONGEST]
    return (scorer.sentence_score(a, [b]).score + scorer.sentence_score(b, [a]).score) / 200


def chrf(a: str, b: str) -> float:
    """chrF of sacrebleu, 0 to 1, mean of both directions."""
    scorer, a, b = _scorers()[1], a[:LONGEST], b[:LONGEST]
    return (scorer.sentence_score(a, [b]).score + scorer.sentence_score(b, [a]).score) / 200


@lru_cache(maxsize=1)
def _scorers() -> tuple[Any, Any]:
    from sacrebleu.metrics import BLEU, CHRF

    return BLEU(effective_order=True), CHRF()


def mean_similarity(
    pairs: Sequence[Pair],
    texts: Mapping[Any, str],
    measure: Callable[[str, str], float],
    most: int,
    seed: int = 0,
) -> float | None:
    """Mean of ``measure`` over the weighted pairs, equal outputs counting 1. Above ``most``
    different pairs, ``most`` of them are drawn by weight. None where a text is missing."""
    same = sum(weight for a, b, weight in pairs if a == b)
    different = [p for p in pairs if p[0] != p[1]]
    if not pairs or any(k not in texts for a, b, _ in different for k in (a, b)):
        return None
    if not different:
        return 1.0
    weights = [weight for _, _, weight in different]
    if len(different) > most:
        drawn = random.Random(seed).choices(different, weights, k=most)
        mean = sum(measure(texts[a], texts[b]) for a, b, _ in drawn) / most
    else:
        mean = sum(w * measure(texts[a], texts[b]) for a, b, w in different) / sum(weights)
    return round(same + (1.0 - same) * mean, 12)


def edit_pairs(length: float) -> int:
    """Pairs of different outputs to compare by edits, at this mean length in characters."""
    return max(100, min(8000, int(2e9 / (length * length + 1))))


def translation_pairs(length: float) -> int:
    """The same for BLEU and chrF, which take far longer."""
    return max(20, min(300, int(2e5 / (length + 1))))
