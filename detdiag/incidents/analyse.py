"""Mined columns to the report: ranked incidents, factor tests and a sentence for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detdiag.incidents.association import ALPHA, MAX_GROUPS, MIN_REPEATS
from detdiag.incidents.attribution import attribution
from detdiag.incidents.columns import NAMES
from detdiag.incidents.factors import factor_values, judge, sample_of
from detdiag.incidents.mine import LogFile, Progress, read_logs
from detdiag.incidents.model import (
    FactorTest,
    FileSummary,
    Incident,
    IncidentReport,
    Variant,
)
from detdiag.incidents.prompts import excerpt, fork, sampling_of
from detdiag.incidents.table import Groups, Table, group, tabulate
from detdiag.incidents.texts import Shown, Wanted, fetch
from detdiag.inputs.canonical import canonical_request, request_digest

MAX_VARIANTS: Final = 6
SHOWN_FACTORS: Final = (*NAMES, "cached_tokens", "concurrency")

Array = NDArray[Any]


def mine(
    paths: Sequence[Path],
    *,
    top: int = 100,
    jobs: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> IncidentReport:
    """Read logs and report the requests that got different answers.

    ``top`` bounds the incidents that are shown with texts; all are counted. Raises
    :class:`detdiag.errors.DetdiagError` for a log that cannot be read or recognised.
    """
    logs = read_logs(paths, jobs=jobs, progress=progress)
    table = tabulate(logs)
    for log in logs:
        log.columns.clear()
    groups = group(table)
    ranked = _ranked(groups)
    values = factor_values(table)
    considered = ranked[: max(top, 2 * MAX_GROUPS)]
    shown = _fetch(logs, table, groups, considered, top)
    sampling = {g: sampling_of(shown[g][0].request) for g in considered if shown.get(g)}
    tested = [g for g in considered if sampling.get(g) != "on" and _repeats(groups, g)]
    answers = table.columns["output"]
    samples = [sample_of(groups.members(g), answers, values) for g in tested[:MAX_GROUPS]]
    tests = judge(samples, seed)
    incidents = tuple(
        _incident(rank, g, table, groups, values, shown.get(g, []), tests)
        for rank, g in enumerate(ranked[:top].tolist(), start=1)
    )
    return _report(logs, table, groups, len(ranked), incidents, tests)


def _ranked(groups: Groups) -> Array:
    """Groups with several answers: most records off the usual answer first, then most answers."""
    found = np.flatnonzero(groups.distinct > 1)
    order = np.lexsort((-groups.sizes[found], -groups.distinct[found], -groups.deviating[found]))
    return found[order]


def _repeats(groups: Groups, index: int) -> bool:
    return int(groups.sizes[index]) >= MIN_REPEATS


def _variants(table: Table, members: Array) -> list[Array]:
    """Members of a group by answer, the most frequent first, in the order of the log."""
    codes = table.columns["output"][members]
    kinds, first_at, counts = np.unique(codes, return_index=True, return_counts=True)
    order = np.lexsort((first_at, -counts))
    return [members[codes == kinds[i]] for i in order]


def _fetch(
    logs: Sequence[LogFile], table: Table, groups: Groups, ranked: Array, top: int
) -> dict[int, list[Shown]]:
    """Texts of the first record of each answer for the shown incidents; of the rest one record,
    whose request says whether it samples."""
    wanted: dict[int, list[Wanted]] = {}
    for place, index in enumerate(ranked.tolist()):
        variants = _variants(table, groups.members(index))
        count = MAX_VARIANTS if place < top else 1
        wanted[index] = [_wanted(table, int(v[0])) for v in variants[:count]]
    found = fetch(logs, [one for ones in wanted.values() for one in ones])
    return {
        index: [found[one] for one in ones]
        for index, ones in wanted.items()
        if all(one in found for one in ones)
    }


def _wanted(table: Table, record: int) -> Wanted:
    columns = table.columns
    return Wanted(
        file=int(columns["file"][record]),
        offset=int(columns["offset"][record]),
        line=int(columns["line"][record]),
        request=int(columns["request"][record]),
        output=int(columns["output"][record]),
    )


def _incident(
    rank: int,
    index: int,
    table: Table,
    groups: Groups,
    values: Mapping[str, Array],
    shown: Sequence[Shown],
    tests: Sequence[FactorTest],
) -> Incident:
    members = groups.members(index)
    variants = _variants(table, members)
    request: Mapping[str, Any] = shown[0].request if shown else {}
    sampling = sampling_of(request) if shown else "not set"
    factor, sentence = attribution(table, members, values, tests, sampling, request)
    sizes = [len(v) for v in variants]
    times = table.columns["start_s"][members]
    times = times[np.isfinite(times)]
    model = request.get("model")
    return Incident(
        rank=rank,
        digest=request_digest(request) if shown else "",
        model=model if isinstance(model, str) else None,
        prompt=excerpt(request),
        records=len(members),
        distinct=len(variants),
        deviating=int(groups.deviating[index]),
        agreement=_agreement(sizes),
        sampling=sampling,
        attribution=sentence,
        factor=factor,
        first_s=float(times.min()) if len(times) else None,
        last_s=float(times.max()) if len(times) else None,
        variants=tuple(_variant_views(table, variants, values, shown)),
        request=canonical_request(request),
    )


def _agreement(sizes: Sequence[int]) -> float:
    """Share of equal pairs: unbiased in the number of records, unlike "all agree"."""
    total = sum(sizes)
    return sum(n * (n - 1) for n in sizes) / (total * (total - 1))


def _variant_views(
    table: Table, variants: Sequence[Array], values: Mapping[str, Array], shown: Sequence[Shown]
) -> list[Variant]:
    out = []
    usual = shown[0].text if shown else ""
    for place, (records, text) in enumerate(zip(variants, shown, strict=False)):
        out.append(
            Variant(
                count=len(records),
                text=text.text,
                fork=None if place == 0 else fork(usual, text.text),
                seen_under=_seen_under(table, records, values),
                source=text.source,
            )
        )
    return out


def _seen_under(
    table: Table, records: Array, values: Mapping[str, Array]
) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {}
    for name in SHOWN_FACTORS:
        column = values[name][records]
        kinds, counts = np.unique(column[np.isfinite(column)], return_counts=True)
        if len(kinds):
            pairs = sorted(zip(kinds.tolist(), counts.tolist(), strict=True), key=lambda p: -p[1])
            out[name] = {_name(table, name, kind): count for kind, count in pairs[:8]}
    return out


def _name(table: Table, factor: str, value: float) -> str:
    if factor in NAMES:
        return table.words[factor][int(value)]
    if factor == "cached_tokens":
        return "some" if value else "none"
    return str(int(value))


def _report(
    logs: Sequence[LogFile],
    table: Table,
    groups: Groups,
    found: int,
    incidents: tuple[Incident, ...],
    tests: Sequence[FactorTest],
) -> IncidentReport:
    repeated = groups.sizes >= 2
    inert: dict[str, int] = {}
    for log in logs:
        for name, count in log.inert.items():
            inert[name] = inert.get(name, 0) + count
    counts = {
        "records": len(table),
        "requests": len(groups.sizes),
        "repeated": int(np.count_nonzero(repeated)),
        "repeats": int(groups.sizes[repeated].sum()),
        "found": found,
        "deviating": int(groups.deviating.sum()),
    }
    return IncidentReport(
        files=tuple(_file(log) for log in logs),
        duplicates=table.duplicates,
        incidents=incidents,
        factors=tuple(tests),
        inert=dict(sorted(inert.items(), key=lambda pair: -pair[1])),
        sentence=_sentence(counts, tests),
        **counts,
    )


def _sentence(counts: Mapping[str, int], tests: Sequence[FactorTest]) -> str:
    repeated, found = counts["repeated"], counts["found"]
    if not repeated:
        return f"No request occurs twice in {counts['records']:,} records: nothing to compare."
    if not found:
        return (
            f"No difference seen: {repeated:,} repeated requests, {counts['repeats']:,} records, "
            "one answer each."
        )
    head = (
        f"{found:,} of {repeated:,} repeated requests got more than one answer "
        f"({counts['deviating']:,} of {counts['repeats']:,} records off the usual one)"
    )
    led = [" = ".join((t.factor, *t.same_as)) for t in tests if t.outcome == "associated"]
    if led:
        return f"{head}; answers go with {', '.join(led)} (association, p at most {ALPHA})."
    tied = [t.factor for t in tests if t.outcome == "confounded"]
    if tied:
        return f"{head}; answers go with {' and '.join(tied)}, which the log cannot tell apart."
    if any(t.outcome == "not seen" for t in tests):
        return f"{head}; no recorded condition goes with the answer."
    return f"{head}; too few repeats to test any condition."


def _file(log: LogFile) -> FileSummary:
    return FileSummary(
        path=str(log.path),
        format=log.format,
        lines=log.lines,
        records=log.records,
        broken_count=log.broken_count,
        broken=tuple(log.broken),
        left_out=log.left_out,
        damage=log.damage,
    )
