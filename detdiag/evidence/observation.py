"""One observation: what came out of the model under which named conditions.

The shape is the contract of the case folder; ``from_dict`` is lenient about what is missing
(a missing channel is "cannot test") and strict about what is there but of the wrong type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detdiag.errors import DetdiagError


@dataclass(frozen=True, slots=True)
class Candidate:
    """One alternative at one position; ``logprob`` in nats as sent by the server."""

    token: str | None
    id: int | None
    logprob: float


@dataclass(frozen=True, slots=True)
class Position:
    """One generated token with its alternatives, best first."""

    token: str | None
    id: int | None
    logprob: float | None
    top: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """What the model returned. ``logit_digests`` holds one bit-exact digest of the full logit
    row per position (hex), where the prober could read it; it is absent in recorded evidence."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    positions: tuple[Position, ...] | None = None
    logit_digests: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """Router decision for one token in one block. ``scores`` has one entry per expert."""

    block: int
    position: int
    experts: tuple[int, ...]
    weights: tuple[float, ...] | None = None
    scores: tuple[float, ...] | None = None
    score_dtype: str | None = None
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """One run of one query under one condition.

    ``role`` is ``"trial"`` for what the user's condition produces and ``"intervention"`` for a
    run that a prober made with something switched on purpose (its arms may differ legitimately,
    so only the repeatability inside one arm is evidence). ``unrecorded`` names parts of ``request``
    that the call may have had and the log does not keep (``"parameters"``): their absence there
    says nothing.
    """

    id: str
    query: str | None = None
    request: Mapping[str, Any] | None = None
    surface: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    output: Output = field(default_factory=Output)
    routing: tuple[Route, ...] | None = None
    factors: Mapping[str, Any] = field(default_factory=dict)
    response: Mapping[str, Any] | None = None
    role: str = "trial"
    source: str | None = None
    unrecorded: tuple[str, ...] = ()

    @classmethod
    def from_dict(
        cls, raw: Any, *, path: str | None = None, line: int | None = None
    ) -> Observation:
        """Read one decoded JSON object; raise :class:`DetdiagError` naming field, file and line."""
        reader = _Reader(path, line)
        obj = reader.mapping(raw, "an observation")
        ident = obj.get("id")
        if not isinstance(ident, (str, int)) or isinstance(ident, bool) or ident == "":
            raise reader.error("field 'id'", "a non-empty string", ident)
        return cls(
            id=str(ident),
            query=reader.optional_str(obj, "query"),
            request=reader.optional_mapping(obj, "request"),
            surface=reader.optional_str(obj, "surface"),
            prompt_token_ids=reader.ints(obj, "prompt_token_ids"),
            output=reader.output(obj.get("output")),
            routing=reader.routing(obj.get("routing")),
            factors=reader.optional_mapping(obj, "factors") or {},
            response=reader.optional_mapping(obj, "response"),
            role=reader.optional_str(obj, "role") or "trial",
            source=None if path is None else f"{path}:{line}" if line else path,
            unrecorded=reader.names(obj, "unrecorded"),
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of this observation, absent channels left out; floats round-trip."""
        out: dict[str, Any] = {"id": self.id}
        _put(out, "query", self.query)
        _put(out, "request", self.request)
        _put(out, "surface", self.surface)
        _put(out, "prompt_token_ids", _listed(self.prompt_token_ids))
        output = _output_dict(self.output)
        if output:
            out["output"] = output
        if self.routing is not None:
            out["routing"] = [_route_dict(route) for route in self.routing]
        out["factors"] = dict(self.factors)
        _put(out, "response", self.response)
        if self.role != "trial":
            out["role"] = self.role
        if self.unrecorded:
            out["unrecorded"] = list(self.unrecorded)
        return out


def _put(target: dict[str, Any], key: str, value: Any) -> None:
    if value is not None:
        target[key] = value


def _listed(value: Sequence[Any] | None) -> list[Any] | None:
    return None if value is None else list(value)


def _output_dict(output: Output) -> dict[str, Any]:
    out: dict[str, Any] = {}
    _put(out, "text", output.text)
    _put(out, "token_ids", _listed(output.token_ids))
    _put(out, "finish_reason", output.finish_reason)
    if output.positions is not None:
        out["positions"] = [_position_dict(position) for position in output.positions]
    _put(out, "logit_digests", _listed(output.logit_digests))
    return out


def _position_dict(position: Position) -> dict[str, Any]:
    out: dict[str, Any] = {}
    _put(out, "token", position.token)
    _put(out, "id", position.id)
    _put(out, "logprob", position.logprob)
    if position.top:
        out["top"] = [
            {
                k: v
                for k, v in (("token", c.token), ("id", c.id), ("logprob", c.logprob))
                if v is not None
            }
            for c in position.top
        ]
    return out


def _route_dict(route: Route) -> dict[str, Any]:
    out: dict[str, Any] = {
        "block": route.block,
        "position": route.position,
        "experts": list(route.experts),
    }
    _put(out, "weights", _listed(route.weights))
    _put(out, "scores", _listed(route.scores))
    _put(out, "score_dtype", route.score_dtype)
    out["dropped"] = route.dropped
    return out


class _Reader:
    """Type checks that name the field, the file and the line."""

    def __init__(self, path: str | None, line: int | None) -> None:
        self.path = path
        self.line = line

    def error(self, what: str, expected: str, got: Any) -> DetdiagError:
        shown = type(got).__name__ if got is not None else "nothing"
        return DetdiagError(
            f"{what}: expected {expected}, found {shown}", path=self.path, line=self.line
        )

    def mapping(self, value: Any, what: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self.error(what, "a JSON object", value)
        return value

    def optional_mapping(self, obj: Mapping[str, Any], key: str) -> Mapping[str, Any] | None:
        value = obj.get(key)
        return None if value is None else self.mapping(value, f"field {key!r}")

    def optional_str(self, obj: Mapping[str, Any], key: str) -> str | None:
        value = obj.get(key)
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
        raise self.error(f"field {key!r}", "a string", value)

    def sequence(self, value: Any, what: str) -> Sequence[Any]:
        if not isinstance(value, (list, tuple)):
            raise self.error(what, "a list", value)
        return value

    def ints(self, obj: Mapping[str, Any], key: str) -> tuple[int, ...] | None:
        value = obj.get(key)
        if value is None:
            return None
        return tuple(
            self.integer(v, f"field {key!r}") for v in self.sequence(value, f"field {key!r}")
        )

    def names(self, obj: Mapping[str, Any], key: str) -> tuple[str, ...]:
        value = obj.get(key)
        found = () if value is None else self.sequence(value, f"field {key!r}")
        return tuple(str(name) for name in found)

    def integer(self, value: Any, what: str) -> int:
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            raise self.error(what, "an integer", value)
        return int(value)

    def number(self, value: Any, what: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(what, "a number", value)
        try:
            return float(value)
        except OverflowError:
            return math.copysign(math.inf, value)

    def numbers(self, value: Any, what: str) -> tuple[float, ...] | None:
        if value is None:
            return None
        return tuple(self.number(v, what) for v in self.sequence(value, what))

    def output(self, value: Any) -> Output:
        if value is None:
            return Output()
        if isinstance(value, str):
            return Output(text=value)
        obj = self.mapping(value, "field 'output'")
        positions = obj.get("positions")
        digests = obj.get("logit_digests")
        return Output(
            text=self.optional_str(obj, "text"),
            token_ids=self.ints(obj, "token_ids"),
            finish_reason=self.optional_str(obj, "finish_reason"),
            positions=None
            if positions is None
            else tuple(self.position(p) for p in self.sequence(positions, "output.positions")),
            logit_digests=None
            if digests is None
            else tuple(str(d) for d in self.sequence(digests, "output.logit_digests")),
        )

    def position(self, value: Any) -> Position:
        obj = self.mapping(value, "output.positions entry")
        logprob = obj.get("logprob")
        top = obj.get("top")
        return Position(
            token=self.optional_str(obj, "token"),
            id=None if obj.get("id") is None else self.integer(obj["id"], "position id"),
            logprob=None if logprob is None else self.number(logprob, "position logprob"),
            top=()
            if top is None
            else tuple(self.candidate(c) for c in self.sequence(top, "position top")),
        )

    def candidate(self, value: Any) -> Candidate:
        obj = self.mapping(value, "position top entry")
        return Candidate(
            token=self.optional_str(obj, "token"),
            id=None if obj.get("id") is None else self.integer(obj["id"], "candidate id"),
            logprob=self.number(obj.get("logprob"), "candidate logprob"),
        )

    def routing(self, value: Any) -> tuple[Route, ...] | None:
        if value is None:
            return None
        return tuple(self.route(r) for r in self.sequence(value, "field 'routing'"))

    def route(self, value: Any) -> Route:
        obj = self.mapping(value, "routing entry")
        return Route(
            block=self.integer(obj.get("block"), "routing block"),
            position=self.integer(obj.get("position"), "routing position"),
            experts=tuple(
                self.integer(e, "routing expert")
                for e in self.sequence(obj.get("experts"), "routing experts")
            ),
            weights=self.numbers(obj.get("weights"), "routing weights"),
            scores=self.numbers(obj.get("scores"), "routing scores"),
            score_dtype=self.optional_str(obj, "score_dtype"),
            dropped=bool(obj.get("dropped", False)),
        )
