"""Figures of one prompt against the libraries' own numbers, brute force and hand counts."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz import fuzz
from rapidfuzz.distance import Levenshtein

from detdiag.score import forks, similarity
from detdiag.score.figures import Measured, figures_of
from detdiag.score.sample import Run
from tests.score.make import run

TEXTS = st.lists(st.text("ab c", max_size=8), min_size=2, max_size=6)


def _figures(outputs: list[str], **fields: object):
    runs = [run(o, str(i), **fields) for i, o in enumerate(outputs)]
    return figures_of("q", [runs], None, Measured())


def _mean(outputs: list[str], measure) -> float:
    pairs = list(combinations(outputs, 2))
    return sum(1.0 if a == b else measure(a, b) for a, b in pairs) / len(pairs)


@settings(deadline=None, max_examples=60)
@given(TEXTS)
def test_similarities_are_means_over_all_pairs(outputs: list[str]) -> None:
    def edits(a: str, b: str) -> float:
        return 1 - Levenshtein.distance(a, b) / max(len(a), len(b))

    def bleu(a: str, b: str) -> float:
        return (sacrebleu.sentence_bleu(a, [b]).score + sacrebleu.sentence_bleu(b, [a]).score) / 200

    def chrf(a: str, b: str) -> float:
        return (sacrebleu.sentence_chrf(a, [b]).score + sacrebleu.sentence_chrf(b, [a]).score) / 200

    found = _figures(outputs)
    assert found.edit == pytest.approx(_mean(outputs, edits))
    assert found.bleu == pytest.approx(_mean(outputs, bleu))
    assert found.chrf == pytest.approx(_mean(outputs, chrf))


def test_edit_similarity_by_hand() -> None:
    """kitten to sitting: 3 edits over 7 characters (and unlike fuzz.ratio, which is weighted)."""
    assert similarity.edit_similarity("kitten", "sitting") == pytest.approx(1 - 3 / 7)
    assert fuzz.ratio("kitten", "sitting") / 100 != pytest.approx(1 - 3 / 7)
    assert similarity.edit_similarity("", "abc") == 0.0
    assert similarity.edit_similarity("", "") == 1.0


def test_drawn_pairs_estimate_the_mean_of_all() -> None:
    outputs = [f"{'x' * (i % 7)}{i:04d}" for i in range(60)]
    texts = {o: o for o in outputs}
    pairs = [(a, b, 1 / 1770) for a, b in combinations(outputs, 2)]
    exact = similarity.mean_similarity(pairs, texts, similarity.edit_similarity, 5000)
    drawn = similarity.mean_similarity(pairs, texts, similarity.edit_similarity, 900)
    assert drawn == pytest.approx(exact, abs=0.02)
    assert drawn != exact


def test_long_texts_are_compared_in_fewer_pairs() -> None:
    assert similarity.edit_pairs(100) == 8000 and similarity.edit_pairs(20_000) == 100
    assert similarity.translation_pairs(100) == 300 and similarity.translation_pairs(50_000) == 20


@settings(deadline=None, max_examples=60)
@given(TEXTS)
def test_forks_and_hazard_are_counts_over_all_pairs(outputs: list[str]) -> None:
    """Every pair walked token by token; all outputs end by themselves, so a shorter one that is
    a prefix parts where it ends."""
    events, compared, first = 0, 0, math.inf
    for a, b in combinations(outputs, 2):
        place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
        if place is None and len(a) != len(b):
            place = min(len(a), len(b))
        events += place is not None
        compared += len(a) if place is None else place + 1
        first = first if place is None else min(first, place)
    found = _figures(outputs)
    pairs = math.comb(len(outputs), 2)
    top, bottom = found.hazard
    assert top * pairs == pytest.approx(events) and bottom * pairs == pytest.approx(compared)
    assert forks.first_fork(found.meetings) == (None if first == math.inf else first)


def test_an_output_that_its_limit_cut_is_no_fork() -> None:
    runs = [run("abc", "1", finish_reason="length"), run("abcde", "2")]
    found = figures_of("q", [runs], None, Measured())
    assert [m.forked for m in found.meetings] == [False]
    ended = [run("abc", "1"), run("abcde", "2")]
    assert [m.forked for m in figures_of("q", [ended], None, Measured()).meetings] == [True]


def test_hazard_recovers_the_rate_of_simulated_forks() -> None:
    """Runs that leave a common text at each token with chance 0.01 and never come back."""
    import random

    rng = random.Random(2)
    runs = []
    for i in range(150):
        place = next((t for t in range(100) if rng.random() < 0.01), None)
        steps = list(range(100)) if place is None else [*range(place), f"{i}", *range(1000, 1010)]
        runs.append(run(f"o{steps}", str(i), steps=tuple(steps)))
    top, bottom = figures_of("q", [runs], None, Measured()).hazard
    # Of a pair either run may leave: twice the rate of one run.
    assert top / bottom == pytest.approx(0.02, rel=0.2)


def test_survival_by_hand() -> None:
    """Pairs of ab, ab, ax, b: ab-ab ends whole at 2, ab-ax parts at 1 (twice), b parts at 0
    from three."""
    found = _figures(["ab", "ab", "ax", "b"])
    places, shares = forks.survival(found.meetings)
    assert places == [0, 1, 2]
    # At risk 6 at position 0: 3 part. At risk 3 at position 1: 2 part.
    assert shares == pytest.approx([1.0, 1 / 2, 1 / 2 * 1 / 3])


def test_survival_lets_ended_pairs_leave_the_count() -> None:
    """Kaplan-Meier: a pair that ended at 1 is not at risk at 2."""
    met = [forks.Meeting(1, False, 1.0), forks.Meeting(2, True, 1.0), forks.Meeting(5, False, 1.0)]
    assert forks.survival(met) == ([0, 3, 5], [1.0, 0.5, 0.5])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    from os.path import commonprefix

    assert forks.common_prefix(a, b) == len(commonprefix([a, b]))


def _digested(output: str, digests: str, burst: str, channel: str = "logits") -> Run:
    return run(output, burst, digests=tuple(digests), channel=channel)


def test_digests_are_compared_up_to_the_fork_and_not_beyond() -> None:
    """abX and abY fork at 2: digests at 0, 1 and 2 count; those after it do not exist."""
    same = figures_of(
        "q", [[_digested("abX1", "1234", "1"), _digested("abY1", "1239", "2")]], None, Measured()
    )
    assert (same.digest_first, same.digest) == (1.0, 1.0)
    other = figures_of(
        "q", [[_digested("abX1", "1234", "1"), _digested("abY1", "1294", "2")]], None, Measured()
    )
    assert (other.digest_first, other.digest) == (1.0, 0.0)


def test_equal_text_with_other_digests_is_seen() -> None:
    runs = [_digested("ab", "12", "1"), _digested("ab", "13", "2"), _digested("ab", "12", "3")]
    found = figures_of("q", [runs], None, Measured())
    assert found.agreement == 1.0
    assert found.digest_first == 1.0
    assert found.digest == pytest.approx(1 / 3)


def test_channels_are_never_mixed() -> None:
    """Two runs with digests of logits, one with log-probabilities, one with none."""
    runs = [
        _digested("ab", "12", "1"),
        _digested("ab", "12", "2"),
        _digested("ab", "99", "3", "log-probabilities"),
        run("ab", "4"),
    ]
    found = figures_of("q", [runs], None, Measured())
    assert (found.digest, found.channel, found.digested) == (1.0, "logits", 2)


def test_one_run_has_no_figure_over_pairs() -> None:
    found = _figures(["a"])
    assert found.agreement is None and found.all_equal is None and found.edit is None
    assert found.meetings == () and found.modal == 1


def test_empty_outputs_are_outputs() -> None:
    found = _figures(["", "", "a"])
    assert found.agreement == pytest.approx(1 / 3)
    assert found.edit == pytest.approx(1 / 3)


def test_without_tokens_characters_are_the_unit() -> None:
    runs = [run("abc", "1", steps=None), run("abd", "2")]
    found = figures_of("q", [runs], None, Measured())
    assert found.unit == "characters" and forks.first_fork(found.meetings) == 2
    assert found.digest is None
