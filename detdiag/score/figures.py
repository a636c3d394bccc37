"""Every figure of one prompt under one set of conditions, from counted outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detdiag.score import forks, similarity
from detdiag.score.answers import Parser
from detdiag.score.pairs import (
    Cell,
    agreement,
    all_equal,
    cell_of,
    inside,
    mixed,
    pooled,
    weighted_pairs,
)
from detdiag.score.sample import Run

FEW: int = 10
"""The N of TARr@10: the number of runs of the published figures."""


@dataclass(frozen=True, slots=True)
class PromptFigures:
    """Figures of one prompt; None where a channel or a second burst is missing.

    ``hazard``: (weight of forks, weighted positions compared). ``unit``: what positions are.
    """

    query: str
    runs: int
    bursts: int
    counts: Mapping[Hashable, int]
    agreement: float | None
    inside: float | None
    answer_agreement: float | None
    answers: int | None
    unparsed: int | None
    all_equal: float | None
    all_equal_few: float | None
    answer_all_equal: float | None
    edit: float | None
    bleu: float | None
    chrf: float | None
    meetings: tuple[forks.Meeting, ...]
    unit: str
    digest_first: float | None
    digest: float | None
    channel: str
    digested: int

    @property
    def modal(self) -> int:
        return max(self.counts.values(), default=0)

    @property
    def hazard(self) -> tuple[float, float]:
        return forks.hazard_parts(self.meetings)


class Measured:
    """Similarities of one prompt, each pair of texts measured once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], float] = {}

    def of(self, name: str, measure: Callable[[str, str], float]) -> Callable[[str, str], float]:
        def look(a: str, b: str) -> float:
            key = (name, min(a, b), max(a, b))
            if key not in self._known:
                self._known[key] = measure(a, b)
            return self._known[key]

        return look


def figures_of(
    query: str,
    groups: Sequence[Sequence[Run]],
    parser: Parser | None,
    measured: Measured,
    seed: int = 0,
) -> PromptFigures:
    """Figures of one prompt whose runs are ``groups`` by condition (equal weight each)."""
    runs = [run for group in groups for run in group]
    cells = [cell_of((run.output, run.burst) for run in group) for group in groups]
    pairs = weighted_pairs(cells, seed)
    counts = pooled(cells)
    texts = {run.output: run.text for run in runs if run.text is not None}
    length = sum(map(len, texts.values())) / max(1, len(texts))
    units, unit = _positions(runs)
    cut = frozenset(run.output for run in runs if run.finish_reason == "length")
    first, every, channel, digested = _digest_agreement(groups, units, unit, cut, seed)

    def alike(name: str, measure: Callable[[str, str], float], most: int) -> float | None:
        return similarity.mean_similarity(pairs, texts, measured.of(name, measure), most, seed)

    return PromptFigures(
        query=query,
        runs=len(runs),
        bursts=len({run.burst for run in runs}),
        counts=counts,
        agreement=_mixed(cells),
        inside=inside(cells[0]) if len(cells) == 1 else None,
        all_equal=all_equal(counts, len(runs)) if len(runs) > 1 else None,
        all_equal_few=all_equal(counts, FEW),
        edit=alike("edit", similarity.edit_similarity, similarity.edit_pairs(length)),
        bleu=alike("bleu", similarity.bleu, similarity.translation_pairs(length)),
        chrf=alike("chrf", similarity.chrf, similarity.translation_pairs(length)),
        meetings=tuple(forks.meetings(pairs, units, cut)) if units else (),
        unit=unit,
        digest_first=first,
        digest=every,
        channel=channel,
        digested=digested,
        **_answers(groups, parser),
    )


def snapped(share: float) -> float:
    """A sum of weights without the last bits that adding them left over."""
    return round(share, 12)


def _mixed(cells: Sequence[Cell]) -> float | None:
    return agreement(cells[0]) if len(cells) == 1 else mixed(cells)


def _answers(groups: Sequence[Sequence[Run]], parser: Parser | None) -> dict[str, Any]:
    """Figures over parsed answers; an output without one counts as the answer "none"."""
    if parser is None:
        return dict.fromkeys(("answer_agreement", "answers", "unparsed", "answer_all_equal"))
    parsed = [
        [(None if run.text is None else parser(run.text), run.burst) for run in group]
        for group in groups
    ]
    cells = [cell_of(group) for group in parsed]
    counts = pooled(cells)
    total = sum(counts.values())
    return {
        "answer_agreement": _mixed(cells),
        "answers": len(counts),
        "unparsed": counts.get(None, 0),
        "answer_all_equal": all_equal(counts, total) if total > 1 else None,
    }


def _positions(runs: Sequence[Run]) -> tuple[dict[Hashable, Sequence[Any]], str]:
    """Tokens of every output where all runs have them, else characters."""
    if all(run.steps is not None for run in runs):
        return {run.output: run.steps or () for run in reversed(runs)}, "tokens"
    if all(isinstance(run.output, str) for run in runs):
        return {run.output: str(run.output) for run in runs}, "characters"
    return {}, "tokens"


def _digest_agreement(
    groups: Sequence[Sequence[Run]],
    units: Mapping[Hashable, Sequence[Any]],
    unit: str,
    cut: frozenset[Hashable],
    seed: int,
) -> tuple[float | None, float | None, str, int]:
    """(first position, every position up to the first fork, channel, runs that have it): shares
    of pairs whose digests are equal. Only runs of the commonest channel are compared."""
    channels = Counter(run.channel for group in groups for run in group if run.digests)
    if not channels or unit != "tokens" or not units:
        return None, None, "", 0
    channel = channels.most_common(1)[0][0]
    kept = [[run for run in group if run.channel == channel and run.digests] for group in groups]
    if not all(kept):
        return None, None, channel, channels[channel]
    cells = [cell_of(((run.output, run.digests), run.burst) for run in group) for group in kept]
    pairs = weighted_pairs(cells, seed)
    if not pairs:
        return None, None, channel, channels[channel]
    steps = {key: units[key[0]] for cell in cells for key in cell.counts}  # type: ignore[index]
    ends = frozenset(key for key in steps if key[0] in cut)  # type: ignore[index]
    first = every = 0.0
    for (a, b, weight), met in zip(pairs, forks.meetings(pairs, steps, ends), strict=True):
        left, right = a[1], b[1]  # type: ignore[index]
        first += weight * (left[0] == right[0])
        every += weight * (left[: met.compared] == right[: met.compared])
    return snapped(first), snapped(every), channel, channels[channel]
