"""Who answered? Labels of the reply, the connection, the session, and one change point in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb

from detdiag.evidence.finding import Evidence, Finding, Remedy
from detdiag.verdict.endpoint.arms import association_p, constant_inside
from detdiag.verdict.endpoint.samples import LABELS, Sample, by_group

_RULES = {
    "replica": "version.replica-changes-output",
    "provider": "version.provider-changes-output",
    "model_reported": "version.model-changes-output",
    "system_fingerprint": "version.fingerprint-changes-output",
    "connection": "version.replica-behind-balancer",
    "session": "version.drift",
}
_ASIDES = {
    "connection": "constant inside each connection, so different servers answer behind one address",
    "system_fingerprint": "the server says that another build or configuration answered",
    "model_reported": "the server names another model",
    "provider": "the router names another provider",
    "replica": "each of them repeats itself",
}


@dataclass(frozen=True, slots=True)
class Route:
    """Outcomes sorted by one ``label``: ``p``, and whether each value is constant in itself."""

    label: str
    p: float
    constant: bool
    values: tuple[str, ...]
    replies: int


def value_of(sample: Sample, label: str) -> str | None:
    if label == "connection":
        return sample.connection
    if label == "session":
        return sample.session
    return sample.label(label)


def route(samples: Sequence[Sample], label: str) -> Route | None:
    """None where the label has one value (or none) wherever outcomes can be compared."""
    varying = {
        g
        for g, members in by_group(samples).items()
        if len({v for s in members if (v := value_of(s, label)) is not None}) > 1
    }
    mine = [s for s in samples if s.group in varying and value_of(s, label) is not None]
    if not mine:
        return None
    values = tuple(sorted({str(value_of(s, label)) for s in mine}))
    return Route(
        label,
        association_p(mine, lambda s: value_of(s, label)),
        constant_inside(mine, lambda s: value_of(s, label)),
        values,
        len(mine),
    )


def routes(samples: Sequence[Sample]) -> list[Route]:
    """Every label with something to compare, the most telling first, the connection last."""
    found = [route(samples, name) for name in (*LABELS, "connection")]
    return [r for r in found if r is not None]


def regroup(samples: Sequence[Sample], label: str) -> list[Sample]:
    """Samples compared only inside one value of ``label``."""
    return [replace(s, group=f"{s.group}|{label}={value_of(s, label)}") for s in samples]


def route_finding(found: Route, p: float, *, chosen: bool) -> Finding:
    """Failed: outcomes go with the label. ``chosen`` labels (URLs, connections) were our choice,
    the others came with the reply."""
    shown = ", ".join(found.values[:4]) + (" ..." if len(found.values) > 4 else "")
    return Finding(
        "version", _RULES[found.label], "failed",
        f"answers go with {found.label.replace('_', ' ')} ({len(found.values)} values: {shown}) in "
        f"{found.replies} replies: {_ASIDES[found.label]} (p = {p:.2g})",
        "high", subject=found.label,
        evidence=(
            Evidence("values of " + found.label, len(found.values), found.replies, "replies"),
            Evidence("p (labels shuffled, Holm)", float(f"{p:.3g}")),
        ),
        mechanism=True, explains=(found.label,), proven=chosen,
        remedy=Remedy(
            "pin one replica, provider or build, or make all of them equal",
            command="compare them: detdiag fingerprint --endpoint URL on each, then detdiag diff",
            verify="all replicas give one answer to one request",
        ),
    )  # fmt: skip


def route_passed(found: Route) -> Finding:
    return Finding(
        "version", _RULES[found.label], "passed",
        f"{len(found.values)} values of {found.label.replace('_', ' ')} give the same answers in "
        f"{found.replies} replies",
        evidence=(
            Evidence("values of " + found.label, len(found.values), found.replies, "replies"),
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """All outcomes change once, at ``time_s``, and never back."""

    time_s: float
    before: int
    after: int
    p: float


def change_point(samples: Sequence[Sample]) -> ChangePoint | None:
    """One change in time that all groups agree on; p counts the orders with two blocks."""
    earliest, latest = float("-inf"), float("inf")
    best: ChangePoint | None = None
    for members in by_group(samples).values():
        ordered = sorted(members, key=lambda s: s.time_s)
        outcomes = [s.outcome for s in ordered]
        changes = [i for i in range(1, len(ordered)) if outcomes[i] != outcomes[i - 1]]
        if not changes:
            continue
        if len(changes) > 1:
            return None
        at, n = changes[0], len(ordered)
        earliest = max(earliest, ordered[at - 1].time_s)
        latest = min(latest, ordered[at].time_s)
        p = min(1.0, (n - 1) / comb(n, at))
        if best is None or p < best.p:
            best = ChangePoint(ordered[at].time_s, at, n - at, p)
    return best if best is not None and earliest <= latest else None


def drift_finding(found: Route, p: float, before: int, now: int) -> Finding:
    """Against a baseline record: each session repeats itself and they differ."""
    return Finding(
        "version", "version.drift", "failed",
        f"the answers differ from the baseline record's: {before} replies then and {now} now, each "
        f"repeating itself (p = {p:.2g})",
        "high", subject="session",
        evidence=(
            Evidence("replies of the baseline", before),
            Evidence("replies now", now),
            Evidence("p (sessions exchanged, Holm)", float(f"{p:.3g}")),
        ),
        mechanism=True, explains=("session",),
        remedy=Remedy(
            "find out what was deployed between the two: model, engine, flags, hardware",
            command="detdiag fingerprint --endpoint URL -o now.json, then detdiag diff "
            "baseline.json now.json",
            verify="the same server gives the baseline's answers again",
        ),
    )  # fmt: skip
