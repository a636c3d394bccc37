"""Two scores side by side, with a paired test over the prompts that both have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from detdiag.evidence.observation import Observation
from detdiag.score.resample import bootstrap_mean, sign_flip
from detdiag.score.sample import query_of


def compare(before: Mapping[str, Any], after: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """``after`` against ``before`` (both score objects): means, paired differences and their p.

    Prompts are paired by name. ``p`` is None with the reason in ``why`` where no test is possible.
    """
    old = {row["query"]: row["agreement"] for row in before["prompts"]}
    rows = [
        {"query": row["query"], "before": old[row["query"]], "after": row["agreement"]}
        for row in after["prompts"]
        if row["agreement"] is not None and old.get(row["query"]) is not None
    ]
    changes = [row["after"] - row["before"] for row in rows]
    tested = sign_flip(changes, seed)
    return {
        "prompts": len(rows),
        "before": _mean([row["before"] for row in rows]),
        "after": _mean([row["after"] for row in rows]),
        "change": _mean(changes),
        "ci95": None if (ends := bootstrap_mean(changes, seed)) is None else list(ends),
        "up": sum(c > 0 for c in changes),
        "down": sum(c < 0 for c in changes),
        "same": sum(c == 0 for c in changes),
        "p": None if tested is None else tested[0],
        "exact": None if tested is None else tested[1],
        "smallest_p": 2.0 ** (1 - len(rows)) if len(rows) > 1 else None,
        "why": _why(rows, changes),
        "figures": _figures(before["figures"], after["figures"]),
        "conditions": {"before": _names(before), "after": _names(after)},
        "runs": {"before": _runs(before), "after": _runs(after)},
        "rows": rows,
    }


def other_inputs(before: Sequence[Observation], after: Sequence[Observation]) -> int:
    """Prompts of the same name that never had the same token ids before and now."""
    seen: list[dict[str, set[tuple[int, ...]]]] = []
    for group in (before, after):
        ids: dict[str, set[tuple[int, ...]]] = defaultdict(set)
        for one in group:
            if one.prompt_token_ids is not None:
                ids[query_of(one)].add(one.prompt_token_ids)
        seen.append(ids)
    both = seen[0].keys() & seen[1].keys()
    return sum(not seen[0][name] & seen[1][name] for name in both)


def _why(rows: Sequence[Mapping[str, Any]], changes: Sequence[float]) -> str:
    if not rows:
        return "none"
    if len(rows) == 1:
        return "one"
    return "" if any(changes) else "same"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _names(score: Mapping[str, Any]) -> list[str]:
    return [row["condition"] for row in score["conditions"]]


def _runs(score: Mapping[str, Any]) -> int:
    return min((row["runs"] for row in score["prompts"]), default=0)


def _figures(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Figures of the same name (TARr@N only where N is the same) next to each other."""
    old = {figure["name"]: figure for figure in before}
    return [
        {"name": f["name"], "before": old[f["name"]], "after": dict(f)}
        for f in after
        if f["name"] in old
    ]
