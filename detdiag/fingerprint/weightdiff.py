"""What changed between two checkpoints: values, names, layout, or nothing but the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from detdiag.fingerprint.values import ValueDiff, compare_values, tensor_places

_MAX_VALUE_TENSORS: Final = 64


@dataclass(frozen=True, slots=True)
class SectionDiff:
    """One section's difference; ``seen`` False where a probe showed no consequence."""

    field: str
    a: Any
    b: Any
    text: str
    seen: bool | None = None


@dataclass(frozen=True, slots=True)
class TensorChanges:
    """Names of tensors by what happened to them, from ``a`` to ``b``."""

    total: int
    changed: tuple[str, ...] = ()
    retyped: tuple[tuple[str, str, str], ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    """Present on one side only, and equal there to a tensor that both sides have (tied weights)."""
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    def describe(self) -> str:
        parts = []
        if self.changed:
            parts.append(_count(self.changed, self.total, "changed"))
        if self.retyped:
            name, old, new = self.retyped[0]
            parts.append(
                f"{len(self.retyped)} of {self.total} in another format ({name}: {old} to {new})"
            )
        if self.renamed:
            old, new = self.renamed[0]
            parts.append(f"{len(self.renamed)} renamed with equal values ({old} to {new})")
        if self.copies:
            name, twin = self.copies[0]
            parts.append(
                f"{len(self.copies)} on one side only, a copy of another ({name} = {twin})"
            )
        if self.removed:
            parts.append(_count(self.removed, self.total, "removed"))
        if self.added:
            parts.append(f"{len(self.added)} added ({self.added[0]})")
        return "; ".join(parts)


def _count(names: Sequence[str], total: int, verb: str) -> str:
    word = "tensor" if len(names) == 1 else "tensors"
    shown = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return f"{len(names)} {word} of {total} {verb} ({shown})"


def tensor_changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> TensorChanges:
    """``a`` and ``b`` map tensor names to [dtype, shape, digest]."""
    changed, retyped = [], []
    for name in a.keys() & b.keys():
        (dtype_a, shape_a, digest_a), (dtype_b, shape_b, digest_b) = a[name], b[name]
        if (dtype_a, shape_a) != (dtype_b, shape_b):
            retyped.append((name, f"{dtype_a} {shape_a}", f"{dtype_b} {shape_b}"))
        elif digest_a != digest_b:
            changed.append(name)
    only_a = sorted(a.keys() - b.keys())
    only_b = sorted(b.keys() - a.keys())
    renamed = _renamed(a, b, only_a, only_b)
    gone = {old for old, _ in renamed}
    come = {new for _, new in renamed}
    copies = [*_copies(a, b, [n for n in only_a if n not in gone]),
              *_copies(b, a, [n for n in only_b if n not in come])]  # fmt: skip
    copied = {name for name, _ in copies}
    return TensorChanges(
        max(len(a), len(b)),
        tuple(sorted(changed)),
        tuple(sorted(retyped)),
        tuple(renamed),
        tuple(copies),
        tuple(n for n in only_a if n not in gone | copied),
        tuple(n for n in only_b if n not in come | copied),
    )


def _renamed(
    a: Mapping[str, Any], b: Mapping[str, Any], only_a: list[str], only_b: list[str]
) -> list[tuple[str, str]]:
    """Pairs with equal dtype, shape and bytes; twins by the longest shared tail."""
    waiting: dict[str, list[str]] = {}
    for name in only_b:
        waiting.setdefault(str(b[name]), []).append(name)
    pairs = []
    for name in only_a:
        twins = waiting.get(str(a[name]))
        if twins:
            best = max(twins, key=lambda other: _shared_tail(name, other))
            twins.remove(best)
            pairs.append((name, best))
    return pairs


def _shared_tail(a: str, b: str) -> int:
    count = 0
    for x, y in zip(reversed(a.split(".")), reversed(b.split(".")), strict=False):
        if x != y:
            break
        count += 1
    return count


def _copies(
    mine: Mapping[str, Any], other: Mapping[str, Any], names: list[str]
) -> list[tuple[str, str]]:
    shared = {str(mine[n]): n for n in mine.keys() & other.keys() if mine[n] == other[n]}
    return [(name, shared[str(mine[name])]) for name in names if str(mine[name]) in shared]


def section(facts: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """``facts[name]`` if it is an object, else an empty one: any JSON may be a fingerprint."""
    found = facts.get(name)
    return found if isinstance(found, Mapping) else {}


def tensor_table(weights: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Well-formed ``tensors`` entries: name to [dtype, shape, digest]."""
    return {
        name: entry
        for name, entry in section(weights, "tensors").items()
        if isinstance(entry, list) and len(entry) == 3
    }


def weight_field(
    a: Mapping[str, Any], b: Mapping[str, Any], values: Mapping[str, Any] | None
) -> SectionDiff | None:
    """The weights compared; None where both sides are equal or one did not record them."""
    digest_a, digest_b = a.get("weights_digest"), b.get("weights_digest")
    if digest_a is None or digest_b is None:
        return None
    left, right = section(a, "weights"), section(b, "weights")
    if digest_a == digest_b:
        return _layout_only(left, right)
    tensors = [tensor_table(side) for side in (left, right)]
    if not all(tensors):
        return SectionDiff("weights_digest", digest_a, digest_b, "")
    found = tensor_changes(*tensors)
    text = found.describe()
    lossless = not (found.changed or found.retyped or found.removed or found.added)
    if lossless:
        text = f"equal values: {text}"
    elif values:
        text += f"; {values['text']}"
    return SectionDiff("weights_digest", digest_a, digest_b, text or "other weight files")


def _layout_only(left: Mapping[str, Any], right: Mapping[str, Any]) -> SectionDiff | None:
    files = [section(side, "files") for side in (left, right)]
    digests = [sorted(str(section(side, n).get("digest")) for n in side) for side in files]
    if not all(files) or digests[0] == digests[1]:
        return None
    text = f"equal values in another layout ({len(files[0])} against {len(files[1])} files)"
    return SectionDiff("weights.files", sorted(files[0]), sorted(files[1]), text)


def value_comparison(
    a: Mapping[str, Any], b: Mapping[str, Any], model_a: Path, model_b: Path
) -> dict[str, Any] | None:
    """How far the changed tensors are apart, read from both model folders (at most 64 tensors)."""
    tensors = [tensor_table(section(side, "weights")) for side in (a, b)]
    changed = tensor_changes(*tensors).changed
    if not changed:
        return None
    places = tensor_places(model_a), tensor_places(model_b)
    rows = compare_values(*places, list(changed[:_MAX_VALUE_TENSORS]))
    return {"text": _value_text(rows, len(changed)), "tensors": [row.to_dict() for row in rows]}


def _value_text(rows: Sequence[ValueDiff], changed: int) -> str:
    if not rows:
        return "the changed values could not be compared"
    largest = max(rows, key=lambda row: (row.max_ulp or 0, row.changed))
    more = f" (the first {len(rows)} of {changed} compared)" if len(rows) < changed else ""
    elements = sum(row.changed for row in rows)
    if largest.max_ulp is None:
        return f"{elements} bytes or blocks differ{more}"
    word = "element differs" if elements == 1 else "elements differ"
    if largest.max_ulp == 1:
        return f"{elements} {word} by one ULP{more}"
    return f"{elements} {word}, at most {largest.max_ulp} ULP ({largest.name}){more}"
