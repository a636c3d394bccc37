"""Does a callable repeat itself? Counts, the bound they allow, and where two results part.

The engine of the pytest plugin; usable without pytest. No torch: tensors and arrays are compared
by dtype, shape and bytes through their own methods.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from detdiag.verdict.stats import runs_for_bound, wilson, zero_bound

DEFAULT_RUNS: Final = 20
DEFAULT_CONFIDENCE: Final = 0.95
_CONTEXT: Final = 40
"""Characters shown on each side of the first difference."""


class BoundOutOfReach(ValueError):
    """The runs asked for cannot exclude the rate asked for, whatever they show."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``runs`` calls; ``bound`` is the rate of change that they must exclude (None: none asked)."""

    runs: int = DEFAULT_RUNS
    bound: float | None = None
    confidence: float = DEFAULT_CONFIDENCE


@dataclass(frozen=True, slots=True)
class Repeats:
    """Outcome of ``runs`` calls. ``counts`` holds how often each distinct result came, the
    commonest first; ``examples`` one result of each; ``first_change`` is the 1-based call at
    which another result than the first appeared."""

    runs: int
    counts: tuple[int, ...]
    examples: tuple[Any, ...]
    confidence: float
    first_change: int | None = None

    @property
    def equal(self) -> bool:
        return len(self.counts) <= 1

    @property
    def differing(self) -> int:
        """Calls whose result is not the commonest one."""
        return self.runs - self.counts[0]

    @property
    def bound(self) -> float:
        """Largest rate of change that the runs still allow (only meaningful where all agree)."""
        return zero_bound(self.runs, self.confidence)


def make_plan(
    runs: int | None = None, bound: float | None = None, confidence: float | None = None
) -> Plan:
    """Fill in what is not given: the runs that the bound needs, or the usual number.

    Raises :class:`BoundOutOfReach` where both are given and do not fit, ValueError for values out
    of range.
    """
    confidence = DEFAULT_CONFIDENCE if confidence is None else confidence
    for name, value in (("bound", bound), ("confidence", confidence)):
        if value is not None and not 0 < value < 1:
            raise ValueError(f"{name}={value!r}: expected a number between 0 and 1")
    if runs is not None and (isinstance(runs, bool) or runs != int(runs) or runs < 2):
        raise ValueError(f"runs={runs!r}: expected a whole number of 2 or more")
    needed = 2 if bound is None else max(2, runs_for_bound(bound, confidence))
    if runs is None:
        return Plan(DEFAULT_RUNS if bound is None else needed, bound, confidence)
    if runs < needed:
        raise BoundOutOfReach(
            f"runs={runs} cannot exclude a rate of {bound:g} at confidence {confidence:g}: "
            f"{needed} equal runs are needed (the best bound of {runs} runs is "
            f"{zero_bound(runs, confidence):.2g})"
        )
    return Plan(int(runs), bound, confidence)


def repeat(
    call: Callable[[], Any],
    plan: Plan,
    *,
    key: Callable[[Any], Any] | None = None,
    stop_at_first: bool = False,
    first: tuple[Any] | None = None,
) -> Repeats:
    """Call ``plan.runs`` times and compare the results to the bit.

    ``key`` reduces a result to what must repeat. ``stop_at_first`` ends at the first change.
    ``first`` is the result of a call already made. Exceptions of ``call`` pass through; raises
    TypeError for a result that cannot be compared.
    """
    counts: Counter[Any] = Counter()
    examples: dict[Any, Any] = {}
    first_change: int | None = None
    done = 0
    for number in range(1, plan.runs + 1):
        value = first[0] if first is not None and number == 1 else call()
        shown = value if key is None else key(value)
        same = identity(shown)
        counts[same] += 1
        examples.setdefault(same, shown)
        done = number
        if len(counts) > 1 and first_change is None:
            first_change = number
            if stop_at_first:
                break
    order = [same for same, _ in counts.most_common()]
    return Repeats(
        done,
        tuple(counts[same] for same in order),
        tuple(examples[same] for same in order),
        plan.confidence,
        first_change,
    )


def identity(value: Any) -> Any:
    """A hashable that is equal for equal bits: NaN equals NaN, 0.0 is not -0.0, 1 is not True."""
    if value is None or isinstance(value, (str, bytes, bool)):
        return (type(value).__name__, value)
    if isinstance(value, int):
        return ("int", int(value))
    if isinstance(value, float):
        return ("float", struct.pack("<d", value))
    if isinstance(value, complex):
        return ("complex", struct.pack("<2d", value.real, value.imag))
    if _is_array(value):
        return _array_identity(value)
    if isinstance(value, Mapping):
        items = [(identity(k), identity(v)) for k, v in value.items()]
        return ("mapping", tuple(sorted(items, key=repr)))
    if isinstance(value, Set):
        return ("set", tuple(sorted((identity(v) for v in value), key=repr)))
    if isinstance(value, (bytearray, memoryview)):
        return ("bytes", bytes(value))
    if isinstance(value, Sequence):
        return ("sequence", tuple(identity(v) for v in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(f.name, identity(getattr(value, f.name))) for f in dataclasses.fields(value)]
        return (type(value).__qualname__, tuple(fields))
    if callable(getattr(value, "model_dump", None)):
        return (type(value).__qualname__, identity(value.model_dump()))
    raise TypeError(
        f"results of type {type(value).__name__} cannot be compared; return text, numbers, arrays "
        "or containers of them, or pass key="
    )


def _is_array(value: Any) -> bool:
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _array_identity(value: Any) -> tuple[Any, ...]:
    """Dtype, shape and a digest of the bytes of a NumPy array or a tensor of any library."""
    kind, shape = str(value.dtype), tuple(int(n) for n in value.shape)
    if callable(getattr(value, "detach", None)):
        flat = value.detach().cpu().contiguous().flatten()
        value = flat.view(_byte_type(flat)).numpy() if flat.numel() else flat.float().numpy()
    raw = value.tobytes() if hasattr(value, "tobytes") else bytes(value)
    return ("array", kind, shape, hashlib.blake2b(raw, digest_size=16).digest())


def _byte_type(tensor: Any) -> Any:
    """uint8 of the tensor's own library, without importing it."""
    import sys

    return sys.modules[type(tensor).__module__.partition(".")[0]].uint8


def failure_text(result: Repeats, plan: Plan, what: str) -> str:
    """The message of a failed assertion: counts with an interval, the two results, the bound."""
    ends = wilson(result.differing, result.runs)
    shown = "" if ends is None else f" [{100 * ends[0]:.2g}-{100 * ends[1]:.2g} %]"
    counts = ", ".join(str(n) for n in result.counts[:8])
    more = ", ..." if len(result.counts) > 8 else ""
    lines = [
        f"{what} does not repeat: {result.differing} of {result.runs} runs differ from the "
        f"commonest result{shown}",
        f"{len(result.counts)} distinct results, seen {counts}{more} times; the first change came "
        f"at run {result.first_change}",
        *difference_lines(result.examples[0], result.examples[1]),
    ]
    if plan.bound is not None:
        lines.append(
            f"asked for: a rate below {100 * plan.bound:g} % at {100 * plan.confidence:g} % "
            f"confidence ({runs_for_bound(plan.bound, plan.confidence)} equal runs)"
        )
    return "\n".join(lines)


def difference_lines(a: Any, b: Any) -> list[str]:
    """Where two results part first, with what stands around it on each side."""
    path, left, right = first_difference(a, b)
    place = f" in {path}" if path else ""
    if not isinstance(left, str) or not isinstance(right, str):
        return [f"first difference{place}:", f"  a: {_shown(left)}", f"  b: {_shown(right)}"]
    at = next(
        (i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y),
        min(len(left), len(right)),
    )
    return [
        f"first difference{place} at character {at} (of {len(left)} and {len(right)}):",
        f"  a: {_around(left, at)}",
        f"  b: {_around(right, at)}",
    ]


def first_difference(a: Any, b: Any, path: str = "") -> tuple[str, Any, Any]:
    """``(path, left, right)`` of the first leaf in which two results differ."""
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        for key in a:
            if identity(a[key]) != identity(b[key]):
                return first_difference(a[key], b[key], f"{path}[{key!r}]")
    both = isinstance(a, (list, tuple)) and isinstance(b, (list, tuple))
    if both:
        for index, (x, y) in enumerate(zip(a, b, strict=False)):
            if identity(x) != identity(y):
                return first_difference(x, y, f"{path}[{index}]")
        if len(a) != len(b):
            return f"{path} length".strip(), len(a), len(b)
    return path, a, b


def _around(text: str, at: int) -> str:
    from detdiag.report.safe import visible

    start, stop = max(0, at - _CONTEXT), at + _CONTEXT
    before, after = visible(text[start:at]), visible(text[at:stop])
    head, tail = "…" if start else "", "…" if stop < len(text) else ""
    return f"{head}{before}⟦{after}⟧{tail}"


def _shown(value: Any) -> str:
    from detdiag.report.safe import one_line

    if _is_array(value):
        return f"{type(value).__name__} {value.dtype} {tuple(value.shape)}: {_values(value)}"
    return one_line(repr(value), 2 * _CONTEXT + 20)


def _values(value: Any) -> str:
    from detdiag.report.safe import one_line

    return one_line(" ".join(str(value).split()), 2 * _CONTEXT)
