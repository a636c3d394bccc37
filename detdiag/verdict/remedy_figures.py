"""Arithmetic of remedies on one run's figures: shares, votes, clean runs that show a fix."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.evidence.observation import Observation
from detdiag.verdict.stats import runs_for_bound, wilson, zero_bound

TARGET_ERROR: Final = 0.01
"""Error of a vote, and rate that clean runs are to exclude."""
ENOUGH: Final = 5
"""Fewest outputs of one query that give a modal share."""
STEPS: Final = 10
TEACHER_FORCED: Final = ":teacher-forced"


def figures(
    observations: Sequence[Observation], contrasts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """``modal`` (the query that agrees least: ``k`` of ``n`` outputs are its most frequent one),
    ``votes``, ``divergence`` of the worst contrast and ``clean_runs``, as far as there is data."""
    out: dict[str, Any] = {}
    modal = _modal(observations)
    if modal is not None:
        out["modal"] = modal
        out["votes"] = _votes(modal)
    rate = _rate(contrasts)
    if rate is not None:
        k, n, factor = rate
        out["divergence"] = {"k": k, "n": n, "factor": factor, "per_100": round(100 * k / n, 1)}
        out["clean_runs"] = {
            "tenth": runs_for_bound(k / n / 10) if k else None,
            "target": runs_for_bound(TARGET_ERROR),
            "target_rate": TARGET_ERROR,
        }
    return out


def _rate(contrasts: Sequence[Mapping[str, Any]]) -> tuple[int, int, str] | None:
    rows = [c for c in contrasts if c.get("n") and c.get("k")]
    if not rows:
        return None
    worst = max(rows, key=lambda c: (c["k"] / c["n"], c["n"]))
    return int(worst["k"]), int(worst["n"]), str(worst.get("factor"))


def _modal(observations: Sequence[Observation]) -> dict[str, Any] | None:
    """The query whose most frequent output has the smallest share, over all of its conditions."""
    outputs: dict[str, Counter[Any]] = defaultdict(Counter)
    for seen in observations:
        out = seen.output
        value: Any = out.text if out.text is not None else out.token_ids or None
        forced = str(seen.query).endswith(TEACHER_FORCED)  # predictions, not an answer
        if seen.role == "trial" and value is not None and not forced:
            outputs[str(seen.query)][value] += 1
    best: dict[str, Any] | None = None
    for query, counts in outputs.items():
        n, k = counts.total(), counts.most_common(1)[0][1]
        if n < ENOUGH or (best is not None and k / n >= best["share"]):
            continue
        ends = wilson(k, n)
        assert ends is not None
        best = {
            "query": query, "share": round(k / n, 4), "k": k, "n": n, "distinct": len(counts),
            "ci95": [round(e, 4) for e in ends],
        }  # fmt: skip
    return best


def _votes(modal: Mapping[str, Any]) -> dict[str, Any]:
    from detdiag.remedies.votes import votes_needed

    out: dict[str, Any] = {"target_error": TARGET_ERROR}
    for name, runs in (("at_share", None), ("at_lower_end", modal["n"])):
        try:
            out[name] = votes_needed(modal["k"] / modal["n"], TARGET_ERROR, runs=runs)
        except DetdiagError:
            out[name] = None
    return out


def vote_sentence(found: Mapping[str, Any]) -> str | None:
    """What voting would take, on this run's modal share."""
    modal, votes = found.get("modal"), found.get("votes")
    if modal is None or votes is None:
        return (
            f"fewer than {ENOUGH} whole outputs of one query were recorded; detdiag score measures "
            "the share of the most frequent one"
        )
    k, n = modal["k"], modal["n"]
    if k == n:
        return (
            f"all {n} outputs of query {modal['query']} agree, so a vote has nothing to decide; "
            f"another output may still come up in at most {zero_bound(n):.1%} of calls (95 %)"
        )
    share = f"{k} of {n} outputs of query {modal['query']} are the same ({k / n:.1%})"
    if votes["at_share"] is None:
        return f"{share}: too close to one half or below it, no number of votes helps"
    careful = votes["at_lower_end"]
    low = modal["ci95"][0]
    rest = (
        f"{careful} at the lower end of its interval ({low:.1%})"
        if careful is not None
        else f"none is enough at the lower end of its interval ({low:.1%}): measure more runs"
    )
    return f"{share}: {votes['at_share']} votes for an error of {votes['target_error']:.0%}, {rest}"


def steps_sentence(found: Mapping[str, Any]) -> str | None:
    """How often a chain of calls would come out the same."""
    modal = found.get("modal")
    if modal is None or modal["k"] == modal["n"]:
        return None
    share = modal["k"] / modal["n"]
    return (
        f"at {share:.1%} a call, a decision made of {STEPS} calls comes out the same in "
        f"{share**STEPS:.1%} of runs"
    )


def clean_sentence(found: Mapping[str, Any]) -> str | None:
    """How many clean runs show that a fix worked."""
    clean, seen = found.get("clean_runs"), found.get("divergence")
    if clean is None or seen is None:
        return None
    tenth = f"{clean['tenth']} runs without a difference show a tenth of {seen['k']} of {seen['n']}"
    return f"{tenth}, {clean['target']} show less than {clean['target_rate']:.0%} (95 %)"
