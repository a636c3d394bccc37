"""What a trace holds: operators, operands, module calls, coverage."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from torch import Tensor

from detdiag.trace.align import Shape
from detdiag.trace.calls import Layout
from detdiag.trace.modules import Frame

Key = tuple[str, str, str]
"""(module path, operator, slot): where solo shapes are looked up."""


class Sig(NamedTuple):
    """One operand: ``digest`` of the aligned bits (None: unalignable or opaque), their dtype and
    shape without sizes of 1, the raw shape and strides, and the operator that wrote it (-1: none
    in this forward; ``source`` then names a parameter, a buffer or a call input)."""

    slot: str
    digest: int | None
    dtype: str
    shape: Shape
    raw: Shape
    stride: Shape
    producer: int
    source: str
    batched: bool

    @property
    def has_row(self) -> bool:
        """Whether the row under test is a part of the operand: of a batch, or of padding."""
        return self.batched or (self.digest is not None and prod(self.shape) != prod(self.raw))


@dataclass(slots=True)
class Op:
    """One operator call, in the order of the forward."""

    index: int
    name: str
    frame: Frame
    occurrence: int
    scalars: tuple[Any, ...]
    inputs: tuple[Sig, ...]
    outputs: tuple[Sig, ...]
    floating: bool
    seeded: bool = False
    drew: bool = False
    """Whether the random state moved while it ran."""


@dataclass(slots=True)
class Anchor:
    """Digests at the door of one module call, with the operators that ran in it."""

    frame: Frame
    first_op: int
    inputs: tuple[Sig, ...]
    outputs: tuple[Sig, ...] = ()
    last_op: int = -1
    held: Any = None


@dataclass(slots=True)
class Coverage:
    """What the trace saw and what it could not see."""

    operators: int = 0
    views: int = 0
    bytes_hashed: int = 0
    unalignable: int = 0
    hidden: int = 0
    opaque: int = 0
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in self.__slots__}


@dataclass(slots=True)
class Trace:
    """One traced forward."""

    ops: list[Op]
    anchors: list[Anchor]
    output: int
    """Index of the operator that wrote the logits (-1 when hidden)."""
    logits: Tensor
    layouts: tuple[Layout, ...]
    coverage: Coverage
    shapes: dict[Key, list[Shape]]
    whole: bool = False
    """Whether tensors were taken whole (two runs of one call) rather than one row of them."""
