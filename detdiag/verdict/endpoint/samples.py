"""Observations of a live server as the judge sees them: an outcome class and the arm it is in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from detdiag.evidence.observation import Observation, Output, Position
from detdiag.verdict.outcome import Level, channels_of, classify, compare

LABELS: Final = ("replica", "provider", "model_reported", "system_fingerprint")
"""What a reply says about who answered, most telling first."""
FEW: Final = 60


@dataclass(frozen=True, slots=True)
class Sample:
    """One reply. ``outcome`` is comparable inside ``group`` (query and recorded channels).

    ``unit`` is what was randomised: a burst, or a block of idle calls; ``arm`` is ``idle``,
    ``burst``, ``cold`` or ``warm``; ``salt`` names one cold start with its warm repeats.
    """

    group: str
    outcome: int
    arm: str
    unit: str
    connection: str
    session: str
    time_s: float
    observation: Observation
    salt: str | None = None
    cached: int | None = None

    def label(self, name: str) -> str | None:
        value = self.observation.factors.get(name)
        return None if value is None else str(value)

    def context(self, name: str) -> Any:
        return context(self.observation).get(name)


def context(observation: Observation) -> Mapping[str, Any]:
    """What the target wrote down about the call itself."""
    found = (observation.response or {}).get("context")
    return found if isinstance(found, Mapping) else {}


def wall_s(observation: Observation) -> float:
    """From sending to the last byte, as the prober saw it."""
    known = context(observation)
    return float(known.get("end_s") or 0.0) - float(known.get("sent_s") or 0.0)


def usage(observation: Observation, name: str) -> int:
    """A token count as the server reports it (``prompt_tokens``, ``completion_tokens``); 0 where
    it reports none."""
    counts = (observation.response or {}).get("usage")
    found = counts.get(name) if isinstance(counts, Mapping) else None
    return found if isinstance(found, int) else 0


def read_samples(observations: Sequence[Observation], *, first_only: bool = False) -> list[Sample]:
    """Samples of all ``observations`` with a comparable outcome, in order of time.

    ``first_only`` compares nothing but the alternatives at the first token: what a draw chose
    afterwards (and there) cannot move them.
    """
    groups: dict[str, list[Observation]] = defaultdict(list)
    for one in observations:
        shown = replace(one, output=_first(one.output)) if first_only else one
        groups[f"{one.query}|{channels_of(shown.output, 'bits')}"].append(shown)
    original = {o.id: o for o in observations}
    out = []
    for group, members in groups.items():
        level: Level = "bits"
        for one, outcome in zip(members, classify(members, level=level), strict=True):
            if outcome >= 0:
                out.append(_sample(group, outcome, original[one.id]))
    return sorted(out, key=lambda s: s.time_s)


def _first(output: Output) -> Output:
    if not output.positions:
        return Output()
    top = output.positions[0].top
    return Output(positions=(Position(None, None, None, top),)) if len(top) > 1 else Output()


def _sample(group: str, outcome: int, one: Observation) -> Sample:
    known, factors = context(one), one.factors
    arm = str(known.get("arm") or "idle")
    cached = factors.get("cached_tokens")
    return Sample(
        group, outcome, arm, str(known.get("unit") or one.id),
        str(factors.get("connection") or ""), str(factors.get("session") or "now"),
        float(factors.get("time") or 0.0), one, known.get("salt"),
        cached if isinstance(cached, int) else None,
    )  # fmt: skip


def by_group(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    out: dict[str, list[Sample]] = defaultdict(list)
    for one in samples:
        out[one.group].append(one)
    return dict(out)


def after_alike(samples: Iterable[Sample]) -> list[Sample]:
    """Samples compared only where the server was asked the same kind of thing before: sessions
    with other prompts put other requests in front of the same question."""
    return [replace(s, group=f"{s.group}|after={s.context('after')}") for s in samples]


def distinct(samples: Iterable[Sample]) -> int:
    """Most outcome classes that one group shows."""
    return max((len({s.outcome for s in g}) for g in by_group(samples).values()), default=0)


def largest_change_nat(samples: Iterable[Sample]) -> float | None:
    """Largest log-probability change between two outcomes of one group, up to the first fork."""
    best: float | None = None
    for members in by_group(samples).values():
        firsts = list({s.outcome: s for s in members}.values())[:FEW]
        for other in firsts[1:]:
            change = compare(firsts[0].observation.output, other.observation.output).max_nat
            if change is not None and (best is None or change > best):
                best = change
    return best


def split(samples: Iterable[Sample], arm: str) -> list[Sample]:
    return [s for s in samples if s.arm == arm]
