"""The result of mining: incidents, factor tests and what was read. Plain data, JSON-ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

SCHEMA: Final = "detdiag.incidents/1"
CAVEAT: Final = (
    "Logs show association, not proof: nobody set these conditions on purpose. A contrast that "
    "changes one of them and repeats the rest is the proof."
)

Sampling = Literal["greedy", "on", "not set"]


@dataclass(frozen=True, slots=True)
class Variant:
    """One distinct answer of an incident. ``fork`` is the first character (0-based) at which it
    leaves the most frequent answer; None for that answer itself. ``seen_under`` counts records by
    factor and value."""

    count: int
    text: str
    fork: int | None
    seen_under: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Incident:
    """One canonical request with more than one answer.

    ``deviating`` is the number of records that are not the most frequent answer; ``agreement`` the
    share of equal pairs among all pairs of records. ``attribution`` is one sentence.
    """

    rank: int
    digest: str
    model: str | None
    prompt: str
    records: int
    distinct: int
    deviating: int
    agreement: float
    sampling: Sampling
    attribution: str
    factor: str | None
    first_s: float | None
    last_s: float | None
    variants: tuple[Variant, ...]
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FactorTest:
    """Permutation test of answer against one factor, labels shuffled inside each request.

    ``p`` and ``p_holm`` are None where ``groups`` or the repeats are too few to print one;
    ``outcome`` says so in one word, ``note`` in a sentence. ``same_as`` are names that always move
    together with the factor.
    """

    factor: str
    layer: str
    groups: int
    records: int
    p: float | None
    p_holm: float | None
    outcome: Literal["associated", "not seen", "confounded", "too little", "not recorded"]
    note: str
    same_as: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileSummary:
    """One log. ``broken`` holds the first line numbers and reasons of ``broken_count``."""

    path: str
    format: str
    lines: int
    records: int
    broken_count: int
    broken: tuple[tuple[int, str], ...]
    left_out: Mapping[str, int]
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """``requests`` counts distinct canonical requests, ``repeated`` those seen at least twice and
    ``repeats`` their records. ``found`` counts all incidents; ``incidents`` holds the first.

    ``duplicates`` are records dropped because their reply was logged before."""

    files: tuple[FileSummary, ...]
    records: int
    requests: int
    repeated: int
    repeats: int
    duplicates: int
    found: int
    deviating: int
    incidents: tuple[Incident, ...]
    factors: tuple[FactorTest, ...]
    inert: Mapping[str, int]
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON report."""
        return {"schema": SCHEMA, **asdict(self), "caveat": CAVEAT}
