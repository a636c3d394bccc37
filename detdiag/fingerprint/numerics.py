"""Log-probabilities of fixed probes from two servers: equal, apart by rounding, or too far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from detdiag.fingerprint.weightdiff import section

ROUNDING_NAT: Final = 0.2
"""Just above the largest change that identical requests under load are known to show (0.18 nat,
48 snapshot suites of text-generation-inference)."""
FAR_NAT: Final = 1.0
"""Above what 16-bit rounding was seen to do to a small model (0.6 in logits, SmolLM2-135M in
bfloat16 at two batch sizes): the model or its input differs. Between the two, either may."""

Size = Literal["rounding", "unclear", "far"]
_WORDS: Final[dict[Size, str]] = {
    "rounding": "the size of rounding (another kernel, engine, hardware or parallel layout; the "
    "weights can be the same)",
    "unclear": "more than rounding usually does (other weights or quantisation, or a coarse dtype)",
    "far": "too far for rounding (other weights, quantisation or input)",
}


@dataclass(frozen=True, slots=True)
class NumericsDiff:
    """``max_nat`` is None where no token is in both lists of alternatives (which is far)."""

    differ: int
    probes: int
    max_nat: float | None
    size: Size
    types: tuple[str, str] | None = None
    """Output types read from the lattice, where the two sides are known and differ."""

    def describe(self) -> str:
        count = f"log-probabilities of {self.differ} of {self.probes} fixed probes differ"
        by = "" if self.max_nat is None else f", by up to {self.max_nat:.3g} nat"
        kinds = "" if self.types is None else f"; {self.types[0]} against {self.types[1]} logits"
        return f"{count}{by}{kinds}: {_WORDS[self.size]}"


def compare_numerics(a: Mapping[str, Any], b: Mapping[str, Any]) -> NumericsDiff | None:
    """Compare the ``numerics`` sections of two endpoint fingerprints; None: equal, or no probe
    that repeated on both sides."""
    left, right = section(a, "numerics"), section(b, "numerics")
    digests = section(left, "digests"), section(right, "digests")
    shared = [name for name in digests[0] if name in digests[1]]
    differ = [name for name in shared if digests[0][name] != digests[1][name]]
    if not differ:
        return None
    values = section(left, "values"), section(right, "values")
    changes = [
        change
        for name in differ
        for change in _changes(values[0].get(name) or [], values[1].get(name) or [])
    ]
    known = [change for change in changes if change is not None]
    most = max(known, default=None)
    size = _size(most, None in changes)
    return NumericsDiff(len(differ), len(shared), most, size, _types(left, right))


def _size(max_nat: float | None, no_shared_token: bool) -> Size:
    if max_nat is None or no_shared_token or max_nat > FAR_NAT:
        return "far"
    return "unclear" if max_nat > ROUNDING_NAT else "rounding"


def _types(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, str] | None:
    one, two = (str(side.get("output_dtype", "unknown")) for side in (a, b))
    return None if one == two or "unknown" in (one, two) else (one, two)


def _changes(a: list[Any], b: list[Any]) -> Iterator[float | None]:
    """Largest change a position, up to and including the first other token; None where the two
    lists of alternatives share no token. A position is ``[[token, "logprob"], ...]``, the chosen
    token first."""
    for left, right in zip(a, b, strict=False):
        one, two = ({str(token): float(value) for token, value in side} for side in (left, right))
        shared = one.keys() & two.keys()
        yield max((abs(one[t] - two[t]) for t in shared), default=None)
        if left[0][0] != right[0][0]:
            return
