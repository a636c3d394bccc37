"""Has a server that never repeats itself changed since the baseline? Means of two sessions.

The statistic is that of log-probability tracking (Chauvin and others, arXiv 2512.03816): the mean
over tokens of the difference between the sessions' mean log-probabilities of the first generated
token. Replies exchange sessions inside each question. Other tenants' load may have changed as well,
so a shift of the size of rounding is reported and blames nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from detdiag.evidence.finding import Evidence, Finding
from detdiag.evidence.observation import Candidate
from detdiag.verdict.endpoint.samples import Sample, after_alike, by_group
from detdiag.verdict.residue import FAR_ABOVE_ROUNDING_NAT

if TYPE_CHECKING:
    import numpy as np

ALARM: Final = 0.001
ENOUGH: Final = 16
"""Replies of one question and session."""
DRAWS: Final = 9999
NOT_COMPUTED: Final = -9000.0
"""Servers send -9999 where they have no value."""


@dataclass(frozen=True, slots=True)
class Shift:
    """``largest_nat`` is the largest difference of two means, ``mean_nat`` the statistic."""

    p: float
    mean_nat: float
    largest_nat: float
    before: int
    now: int

    @property
    def far(self) -> bool:
        return self.largest_nat > FAR_ABOVE_ROUNDING_NAT


def session_shift(samples: Iterable[Sample]) -> Shift | None:
    """None where no question has :data:`ENOUGH` idle replies with alternatives in each session."""
    import numpy as np

    idle = after_alike(s for s in samples if s.arm == "idle" and s.observation.output.positions)
    tables = [t for g in by_group(idle).values() if (t := _table(g)) is not None]
    if not tables:
        return None

    seen = float(np.mean([np.abs(_gaps(t, m[None])).mean() for t, m in tables]))
    rng = np.random.default_rng(0)
    drawn = np.mean([np.abs(_gaps(t, _shuffled(m, rng))).mean(axis=1) for t, m in tables], axis=0)
    return Shift(
        (int((drawn >= seen - 1e-12).sum()) + 1) / (DRAWS + 1),
        seen,
        max(float(np.abs(_gaps(t, m[None])).max()) for t, m in tables),
        sum(int(m.sum()) for _, m in tables),
        sum(int((~m).sum()) for _, m in tables),
    )


def _table(members: Sequence[Sample]) -> tuple[np.ndarray, np.ndarray] | None:
    """(log-probabilities, replies x tokens; which replies are the baseline's). A token that a
    reply does not list has at most the lowest value listed there, and gets that one."""
    import numpy as np

    before = np.array([s.session != "now" for s in members])
    if min(before.sum(), (~before).sum()) < ENOUGH:
        return None
    rows = [
        {str(c.token): c.logprob for c in _first(s) if c.logprob > NOT_COMPUTED} for s in members
    ]
    tokens = sorted({t for row in rows for t in row})
    if len(tokens) < 2 or not all(rows):
        return None
    values = [[row.get(t, min(row.values())) for t in tokens] for row in rows]
    return np.array(values, dtype=float), before


def _first(sample: Sample) -> tuple[Candidate, ...]:
    return (sample.observation.output.positions or ())[0].top


def _shuffled(before: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """:data:`DRAWS` random splits of the same sizes, one a row."""
    import numpy as np

    return rng.permuted(np.tile(before, (DRAWS, 1)), axis=1)


def _gaps(table: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Differences of the two means, splits x tokens; ``before`` is splits x replies."""
    n = before[0].sum()
    first = before.astype(float) @ table
    found: np.ndarray = first / n - (table.sum(axis=0) - first) / (before.shape[1] - n)
    return found


def shift_finding(found: Shift) -> Finding:
    """Failed only where the shift is far larger than rounding."""
    aside = (
        "more than rounding gives"
        if found.far
        else "provisional: other tenants' load may have moved them"
    )
    return Finding(
        "version", "version.drift", "failed" if found.far else "inconclusive",
        f"mean log-probabilities of the first token moved since the baseline, by up to "
        f"{found.largest_nat:.3g} nat (p = {found.p:.2g}), though neither session repeats "
        f"itself; {aside}",
        "high" if found.far else "medium", subject="session",
        evidence=(
            Evidence("replies of the baseline", found.before),
            Evidence("replies now", found.now),
            Evidence("mean shift of a token (nat)", float(f"{found.mean_nat:.3g}")),
            Evidence("p (sessions exchanged)", float(f"{found.p:.3g}")),
        ),
        mechanism=found.far, explains=("session",) if found.far else (),
    )  # fmt: skip
