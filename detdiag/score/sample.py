"""Observations as runs to compare: one prompt, one condition, one output, one burst.

A *burst* is one call of the model that answers several rows at once, or a group of requests that
were in flight together. Runs of one burst share everything that could go wrong in it, so only
pairs of runs from different bursts are counted.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from detdiag.evidence.observation import Observation, Position

SOLO: Final = "solo"
LOAD: Final = "load"
RECORDED: Final = "recorded"

_NOT_A_CONDITION: Final = frozenset(
    "repeat row order time neighbours in_flight_tokens padded_length padding_side connection "
    "cached_tokens effective_params system_fingerprint model_reported provider replica "
    "batch_size concurrency do_sample prompt_digest".split()
)
"""Factors that number runs, that the reply reports, or that the label names in its own words."""


SAME_SECOND_S: Final = 2.0
"""Requests further apart than this cannot have been answered in the same second."""


@dataclass(frozen=True, slots=True)
class Run:
    """One output. ``output`` is what is compared: the text, else the token ids; ``steps`` are its
    tokens (ids, else the strings that came with the log-probabilities).

    ``digests``: one per generated position over logits or log-probabilities; ``channel`` says
    which, as digests of different channels are never compared. ``round`` numbers the repeat under
    its condition, where the record says it.
    """

    query: str
    condition: str
    burst: str
    output: Hashable
    text: str | None
    steps: tuple[Hashable, ...] | None
    finish_reason: str | None
    digests: tuple[str, ...] | None
    channel: str
    round: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Runs in the order in which they were made; ``left_out`` counts what could not be used.

    ``cached`` counts replies that came from a response cache, by how it shows."""

    runs: tuple[Run, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    cached: Mapping[str, int] = field(default_factory=dict)

    @property
    def queries(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.query for run in self.runs))

    @property
    def conditions(self) -> tuple[str, ...]:
        found = dict.fromkeys(run.condition for run in self.runs)
        return tuple(sorted(found, key=lambda name: (name != SOLO, name)))

    def cells(self) -> dict[tuple[str, str], list[Run]]:
        """Runs by (query, condition)."""
        out: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for run in self.runs:
            out[run.query, run.condition].append(run)
        return dict(out)


def sample_of(observations: Iterable[Observation]) -> Sample:
    """The runs of a record or case. Interventions, empty channels and cached replies stay out."""
    left_out: Counter[str] = Counter()
    cached: Counter[str] = Counter()
    kept: list[Observation] = []
    seen: dict[tuple[str, str], list[Any]] = {}
    for one in observations:
        if one.role != "trial":
            left_out["made with something switched on purpose"] += 1
        elif one.output.text is None and one.output.token_ids is None:
            left_out["neither text nor token ids"] += 1
        elif (sign := _cache_sign(one, seen)) is not None:
            cached[sign] += 1
        else:
            kept.append(one)
    varying = _varying(kept)
    by_query: dict[str, list[Observation]] = defaultdict(list)
    for one in kept:
        by_query[query_of(one)].append(one)
    channel = {query: _channel(group) for query, group in by_query.items()}
    runs = []
    for one in kept:
        query = query_of(one)
        output = one.output.text if channel[query] == "text" else one.output.token_ids
        if output is None:
            left_out[f"no {channel[query].replace('_', ' ')}, which the other runs have"] += 1
            continue
        runs.append(_run(one, query, output, varying))
    return Sample(tuple(runs), dict(left_out), dict(cached))


def query_of(one: Observation) -> str:
    """The name of the question: recorded, else from the request or the prompt's token ids."""
    if one.query is not None:
        return one.query
    if one.request is not None:
        from detdiag.incidents.signature import signature

        return f"request {signature(one.request).digest[:12]}"
    if one.prompt_token_ids is not None:
        ids = repr(one.prompt_token_ids).encode()
        return f"prompt {hashlib.sha256(ids).hexdigest()[:12]}"
    return "(no query)"


def _channel(group: Sequence[Observation]) -> str:
    """Text where most runs have it, else token ids: never one against the other."""
    texts = sum(one.output.text is not None for one in group)
    tokens = sum(one.output.token_ids is not None for one in group)
    return "text" if texts >= tokens else "token_ids"


def _context(one: Observation) -> Mapping[str, Any]:
    found = (one.response or {}).get("context")
    return found if isinstance(found, Mapping) else {}


def _cache_sign(one: Observation, seen: dict[tuple[str, str], list[Any]]) -> str | None:
    """How this reply shows that a response cache gave it, or None.

    Some servers draw their ids from a thousand, so one id twice within a second may be chance:
    it takes a third time, or a request sent well after the reply says that it was created.
    """
    context = _context(one)
    if context.get("response_cache"):
        return "a response header names a cache hit"
    ident, created = (one.response or {}).get("id"), (one.response or {}).get("created")
    if not ident or created is None:
        return None
    sent = context.get("sent_s", one.factors.get("time"))
    earlier = seen.setdefault((str(ident), str(created)), [])
    if sent is None or sent in earlier:
        return None  # another choice of the same reply
    earlier.append(sent)
    late = isinstance(sent, (int, float)) and isinstance(earlier[0], (int, float))
    if len(earlier) > 2 or (len(earlier) == 2 and late and sent - earlier[0] >= SAME_SECOND_S):
        return "the same reply id and creation time came again"
    return None


def _varying(observations: Sequence[Observation]) -> tuple[str, ...]:
    """Factors with more than one value inside a query, apart from those that are no condition."""
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in observations:
        for name, value in one.factors.items():
            if name not in _NOT_A_CONDITION:
                values[query_of(one), name].add(repr(value))
    return tuple(sorted({name for (_, name), found in values.items() if len(found) > 1}))


def _run(one: Observation, query: str, output: Hashable, varying: Sequence[str]) -> Run:
    burst = _context(one).get("arm") == "burst"
    condition = condition_label(one.factors, varying, load=burst)
    digests, channel = digests_of(one)
    return Run(
        query=query,
        condition=condition,
        burst=_burst(one, condition),
        output=output,
        text=one.output.text,
        steps=_steps(one),
        finish_reason=one.output.finish_reason,
        digests=digests,
        channel=channel,
        round=_whole(_context(one).get("round")),
    )


def condition_label(
    factors: Mapping[str, Any], varying: Sequence[str] = (), load: bool = False
) -> str:
    """``solo``, ``batch of 8``, ``load`` or ``recorded``, with every other factor that varies.

    ``load``: it was sent in a burst, whether or not the server ran the burst together."""
    size, concurrency = _whole(factors.get("batch_size")), _whole(factors.get("concurrency"))
    if size is not None and size > 1:
        label = f"batch of {size}"
    elif load or (concurrency is not None and concurrency > 1):
        label = LOAD
    else:
        label = RECORDED if size is None and concurrency is None else SOLO
    rest = [f"{name}={_short(factors[name])}" for name in varying if name in factors]
    if rest and label == RECORDED:
        return ", ".join(rest)
    return ", ".join([label, *rest])


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _burst(one: Observation, condition: str) -> str:
    """The call that gave this run: named in the record, else the batch's repeat, the reply's id
    (choices of one reply), else the observation itself."""
    named = _context(one).get("burst")
    if named is not None:
        return f"{condition}/{named}"
    size = _whole(one.factors.get("batch_size"))
    if size is not None and size > 1 and "repeat" in one.factors:
        return f"{condition}/{one.factors['repeat']}"
    ident = (one.response or {}).get("id")
    return f"reply {ident}" if ident else f"run {one.id}"


def _steps(one: Observation) -> tuple[Hashable, ...] | None:
    if one.output.token_ids is not None:
        return one.output.token_ids
    positions = one.output.positions
    if positions and all(p.token is not None for p in positions):
        return tuple(p.token for p in positions)
    return None


def digests_of(one: Observation) -> tuple[tuple[str, ...] | None, str]:
    """One digest a position: of the full logits where recorded, else of the log-probabilities."""
    if one.output.logit_digests:
        return one.output.logit_digests, "logits"
    positions = one.output.positions
    if positions and all(p.logprob is not None or p.top for p in positions):
        return tuple(_position_digest(p) for p in positions), "log-probabilities"
    return None, ""


def _position_digest(position: Position) -> str:
    values = (
        position.logprob,
        tuple((c.token, c.id, c.logprob) for c in position.top),
    )
    return hashlib.blake2b(repr(values).encode("utf-8", "replace"), digest_size=8).hexdigest()
