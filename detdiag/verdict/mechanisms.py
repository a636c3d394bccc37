"""Proofs that need one response, or one pair of responses, and no statistics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Any, Final, Literal

from detdiag.evidence.finding import Evidence, Finding, Locus
from detdiag.evidence.observation import Observation, Output, Position
from detdiag.inputs.canonical import sampling_parameters
from detdiag.verdict.outcome import first_fork, own_key, vector, vectors_equal
from detdiag.verdict.table import Table

SamplingState = Literal["greedy", "sampling", "defaulted", "unknown"]

ARGMAX_SLACK_NAT: Final = 1e-6
MAX_PAIRS: Final = 400
NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "repetition_penalty": (1, None),
    "presence_penalty": (0, None),
    "frequency_penalty": (0, None),
    "logit_bias": ({}, None),
    "min_tokens": (0, None),
    "bad_words": ([], None),
}
"""Parameters that move a greedy choice off the raw arg-max unless they hold one of these."""
GRAMMARS: Final = (
    "response_format",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "grammar",
    "json_schema",
    "regex",
    "ebnf",
)


def parameters(observation: Observation) -> dict[str, Any]:
    """What acted on this observation: recorded factors over recorded effective parameters over
    the request's own fields."""
    out: dict[str, Any] = {}
    if observation.request is not None:
        out.update(sampling_parameters(observation.request))
    effective = observation.factors.get("effective_params")
    if isinstance(effective, Mapping):
        out.update(effective)
    for name in ("temperature", "top_p", "top_k", "do_sample", "num_beams", "seed"):
        if name in observation.factors:
            out[name] = observation.factors[name]
    return out


def sampling_state(observation: Observation) -> SamplingState:
    """What the recorded parameters say: "defaulted" means that a request names no temperature
    on an API whose default samples."""
    known = parameters(observation)
    if known.get("do_sample") is False:
        return "greedy"
    temperature = _as_number(known.get("temperature"))
    if temperature is not None:
        if temperature == 0:
            return "greedy"
        return "sampling" if temperature > 0 else "unknown"
    if known.get("do_sample") is True:
        return "sampling"
    surface = observation.surface or ""
    request = observation.request
    if request is None or surface.startswith("hf.") or "parameters" in observation.unrecorded:
        return "unknown"
    chat_like = bool({"messages", "prompt", "contents", "input"} & request.keys())
    return "defaulted" if chat_like and "do_sample" not in known else "unknown"


def _as_number(value: Any) -> float | None:
    """A parameter as a number; loggers write some as strings."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def moves_argmax(observation: Observation) -> bool:
    """Do penalties, a grammar, a forced tool or beams move the choice off the raw arg-max?"""
    known = parameters(observation)
    if any(name in known and known[name] not in ok for name, ok in NEUTRAL.items()):
        return True
    request = observation.request or {}
    if any(request.get(name) for name in GRAMMARS):
        return True
    if isinstance(request.get("tool_choice"), Mapping) or request.get("tool_choice") == "required":
        return True
    beams = known.get("num_beams")
    return isinstance(beams, int) and beams > 1


def _shortfall(position: Position) -> float | None:
    """How far the chosen token lies below the best alternative, in nats."""
    values = vector(position)
    own = own_key(position)
    if not values or len(values) < 2 or own not in values:
        return None
    return max(values.values()) - values[own]


@dataclass(frozen=True, slots=True)
class ArgmaxCount:
    """Tokens below their own arg-max: ``below`` of ``tokens``, first at ``where``."""

    below: int
    tokens: int
    where: Locus | None
    excluded: int


def argmax_count(observations: Sequence[Observation]) -> ArgmaxCount:
    """Count chosen tokens that are not the arg-max of their own alternatives; observations whose
    penalties, grammar or beams may move the choice are excluded and counted."""
    below = tokens = excluded = 0
    where: Locus | None = None
    for observation in observations:
        if not observation.output.positions:
            continue
        if moves_argmax(observation):
            excluded += 1
            continue
        for index, position in enumerate(observation.output.positions):
            gap = _shortfall(position)
            if gap is None:
                continue
            tokens += 1
            if gap > ARGMAX_SLACK_NAT:
                below += 1
                where = where or Locus(query=observation.query, token=index)
    return ArgmaxCount(below, tokens, where, excluded)


@dataclass(frozen=True, slots=True)
class SameLogits:
    """Two responses with bit-equal vectors up to and including the fork, and another token."""

    pair: tuple[str, str]
    query: str
    fork: int
    gap_nat: float


@dataclass(frozen=True, slots=True)
class ForkCount:
    """Forks with readable vectors: ``same`` proofs, ``moved`` where the vectors differ."""

    same: tuple[SameLogits, ...]
    moved: int


def forks(table: Table) -> ForkCount:
    """Look at each fork between distinct outputs of one query at equal token ids of the prompt."""
    same: list[SameLogits] = []
    moved = 0
    for query, a, b in _distinct_pairs(table):
        fork = first_fork(a.output, b.output)
        if fork is None or a.prompt_token_ids != b.prompt_token_ids:
            continue
        equal = _equal_through(a.output, b.output, fork)
        if equal is None:
            continue
        if not equal:
            moved += 1
            continue
        assert a.output.positions is not None and b.output.positions is not None
        gap = _fork_gap(a.output.positions[fork], b.output.positions[fork])
        if gap is not None:
            same.append(SameLogits((a.id, b.id), str(query), fork, gap))
    return ForkCount(tuple(same), moved)


def _distinct_pairs(table: Table) -> Iterator[tuple[str, Observation, Observation]]:
    """Pairs of observations with other outcome classes, one per pair of classes and condition
    difference, at most MAX_PAIRS a query."""
    for query, rows in table.frame.groupby("query", sort=False):
        firsts = rows[rows["bits"] >= 0].drop_duplicates(["bits", "bits_channels"])["observation"]
        pairs = list(combinations(list(firsts), 2))[:MAX_PAIRS]
        for i, j in pairs:
            yield str(query), table.observations[i], table.observations[j]


def _equal_through(a: Output, b: Output, fork: int) -> bool | None:
    """Are all vectors bit-equal up to and including the fork? None if one is not readable."""
    if not a.positions or not b.positions or fork >= min(len(a.positions), len(b.positions)):
        return None
    for p, q in zip(a.positions[: fork + 1], b.positions, strict=False):
        left, right = vector(p), vector(q)
        if left is None or right is None or min(len(left), len(right)) < 2:
            return None
        if not vectors_equal(p, q):
            return False
    return True


def _fork_gap(p: Position, q: Position) -> float | None:
    values = {**(vector(q) or {}), **(vector(p) or {})}
    own_p, own_q = own_key(p), own_key(q)
    if own_p not in values or own_q not in values:
        return None
    return abs(values[own_p] - values[own_q])


def fork_findings(table: Table, count: ForkCount, greedy: bool) -> list[Finding]:
    """Exact ties are ``decode``; a gap at equal vectors is a draw: ``decode`` where the request
    is known to be greedy, else ``config`` (something still samples)."""
    ties = [s for s in count.same if s.gap_nat == 0.0]
    draws = [s for s in count.same if s.gap_nat > 0.0]
    out = []
    if draws:
        layer: Literal["decode", "config"] = "decode" if greedy else "config"
        rule = "decode.sampler-draws" if greedy else "config.sampling-observed"
        out.append(_fork_finding(layer, rule, draws, count, "a draw, not the arg-max, chose it"))
    if ties:
        out.append(
            _fork_finding(
                "decode", "decode.exact-tie", ties, count, "the two tokens tie to the last bit"
            )
        )
    return out


def _fork_finding(
    layer: Literal["decode", "config"],
    rule: str,
    proofs: list[SameLogits],
    count: ForkCount,
    why: str,
) -> Finding:
    first = proofs[0]
    n = len(count.same) + count.moved
    return Finding(
        layer=layer,
        rule=rule,
        outcome="failed",
        severity="high",
        summary=(
            f"responses {first.pair[0]} and {first.pair[1]} have bit-equal log-probabilities up to "
            f"and at token {first.fork}, yet another token: {why}"
        ),
        evidence=(Evidence("forks at bit-equal log-probabilities", len(proofs), n, "forks"),),
        locus=Locus(query=first.query, token=first.fork),
        mechanism=True,
        explains=EVERYTHING,
        proven=True,
    )


EVERYTHING: Final = ("*",)
"""A mechanism that explains every contrast and failing control of its own fork."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Outcomes that change once in time and never back: ``before`` and ``after`` run counts."""

    query: str
    before: int
    after: int
    p: float


def drift(table: Table, level: Literal["bits", "output"]) -> Drift | None:
    """One change point in time within one condition; p over all orders with two blocks:
    (n - 1) splits out of C(n, k) arrangements."""
    best: Drift | None = None
    columns = [b.column for b in table.bundles]
    for key, rows in table.frame[table.frame[level] >= 0].groupby(
        ["query", f"{level}_channels", *columns], sort=True
    ):
        times = [table.observations[i].factors.get("time") for i in rows["observation"]]
        if any(t is None for t in times) or len({str(t) for t in times}) < len(times):
            continue
        ordered = [
            c for _, c in sorted(zip(times, rows[level], strict=True), key=lambda x: _order(x[0]))
        ]
        blocks = 1 + sum(a != b for a, b in zip(ordered, ordered[1:], strict=False))
        if blocks != 2:
            continue
        before = ordered.index(ordered[-1])
        p = min(1.0, (len(ordered) - 1) / comb(len(ordered), before))
        if best is None or p < best.p:
            best = Drift(str(key[0]), before, len(ordered) - before, p)
    return best


def _order(value: Any) -> tuple[int, float, str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (0, float(value), "")
    return (1, 0.0, str(value))
