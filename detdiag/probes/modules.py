"""First diverging module: what went into and came out of every module, for one row's real tokens.

Two logs are compared by module path and occurrence, so that runs of different shapes (solo,
batched, padded) line up. A module is *born* different at a token when all its aligned inputs are
bit-equal up to that token and its output is not: the difference arises inside it. Modules are
ordered by completion, so a child comes before the parent that only passes it on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from detdiag.probes._compare import bit_equal, differing_rows, row_digests
from detdiag.targets.padding import Padded

Kind = str
"""How batch and tokens sit in a tensor: ``bs`` (rows, tokens, ...), ``bhs`` (rows, heads, tokens,
...), ``flat`` (rows * tokens, ...), or ``1s``/``1hs`` where one row serves the whole batch."""

IGNORED_INPUTS = frozenset({"attention_mask", "past_key_values", "cache_position", "use_cache"})


@dataclass(slots=True)
class Cell:
    """One call of one module. Slices have the row's real tokens on their first axis."""

    path: str
    occurrence: int
    cls: str
    inputs: dict[str, dict[Kind, tuple[tuple[int, ...], tuple[str, ...]]]] = field(
        default_factory=dict
    )
    integers: dict[str, list[int]] = field(default_factory=dict)
    outputs: list[dict[Kind, Tensor]] = field(default_factory=list)


@dataclass(slots=True)
class ModuleLog:
    """Cells in the order in which the modules finished, and the row's logits."""

    cells: dict[tuple[str, int], Cell] = field(default_factory=dict)
    logits: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Birth:
    """A module whose output differs at equal inputs.

    ``token`` is the first such token (0-based, prompt included). ``rms_units`` is
    rms(difference) / rms(output) in unit roundoffs of the output's dtype.
    """

    path: str
    occurrence: int
    cls: str
    token: int
    tokens: int
    rms_units: float
    max_abs: float
    dtype: str

    @property
    def beyond_rounding(self) -> bool:
        """Larger than reordering sums can explain (16-bit: 8 units; wider: 256 units)."""
        return self.rms_units > (8.0 if self.dtype in {"bfloat16", "float16"} else 256.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """``births`` in completion order; ``relative`` per module and token (None: not comparable);
    ``integer_inputs`` are (module, argument, values a, values b) of integer inputs that differ,
    position ids above all; ``unaligned`` counts modules that could not be compared."""

    births: tuple[Birth, ...]
    relative: dict[str, list[float]]
    first: tuple[str, int] | None
    integer_inputs: tuple[tuple[str, str, list[int], list[int]], ...]
    unaligned: int


def slices(value: Tensor, batch: Padded, row: int) -> dict[Kind, Tensor]:
    """Every way in which ``value`` can hold ``row``'s real tokens (usually one or none)."""
    rows, width = batch.input_ids.shape
    real = batch.real(row)
    shape = value.shape
    out: dict[Kind, Tensor] = {}
    if value.dim() >= 2 and shape[1] == width and shape[0] in {rows, 1}:
        single = shape[0] == 1 and rows > 1
        out["1s" if single else "bs"] = value[0 if single else row, real]
    if value.dim() >= 4 and shape[2] == width and shape[0] in {rows, 1}:
        single = shape[0] == 1 and rows > 1
        out["1hs" if single else "bhs"] = value[0 if single else row].transpose(0, 1)[real]
    if value.dim() >= 2 and shape[0] == rows * width:
        start = row * width
        out["flat"] = value[start + real.start : start + real.stop]
    return out


def tensors_in(value: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Tensors in nested tuples, lists and mappings, with a name each."""
    if isinstance(value, Tensor):
        yield prefix, value
    elif isinstance(value, (tuple, list)):
        for index, item in enumerate(value):
            yield from tensors_in(item, f"{prefix}.{index}" if prefix else str(index))
    elif isinstance(value, dict):
        for key, item in value.items():
            if key not in IGNORED_INPUTS:
                yield from tensors_in(item, f"{prefix}.{key}" if prefix else str(key))


class _Recorder:
    def __init__(self, batch: Padded, row: int) -> None:
        self.batch = batch
        self.row = row
        self.log = ModuleLog()
        self._count: dict[str, int] = {}
        self._open: list[Cell] = []

    def before(self, path: str, module: Any, args: Any, kwargs: Any) -> None:
        occurrence = self._count.get(path, 0)
        self._count[path] = occurrence + 1
        cell = Cell(path, occurrence, type(module).__name__)
        for name, tensor in [*tensors_in(args), *tensors_in(kwargs)]:
            found = slices(tensor, self.batch, self.row)
            if not found:
                continue
            cell.inputs[name] = {
                kind: (tuple(part.shape), row_digests(part)) for kind, part in found.items()
            }
            values = next(iter(found.values()))
            if not tensor.dtype.is_floating_point and values.dim() == 1:
                cell.integers[name] = values.tolist()
        self._open.append(cell)

    def after(self, path: str, output: Any) -> None:
        while self._open:
            cell = self._open.pop()
            if cell.path == path:
                break
        else:
            return
        for _, tensor in tensors_in(output):
            found = slices(tensor, self.batch, self.row)
            cell.outputs.append({kind: part.detach().clone() for kind, part in found.items()})
        self.log.cells[(path, cell.occurrence)] = cell


@contextlib.contextmanager
def recording(model: Any, batch: Padded, row: int = 0) -> Iterator[ModuleLog]:
    """Record one forward of ``batch`` on ``model``; hooks are removed on exit.

    Hooks run after those that the model brought along, so a changed output is seen as changed.
    """
    recorder = _Recorder(batch, row)
    handles = []
    for path, module in model.named_modules():
        name = path or type(model).__name__

        def before(mod: Any, args: Any, kwargs: Any, name: str = name) -> None:
            recorder.before(name, mod, args, kwargs)

        def after(mod: Any, args: Any, output: Any, name: str = name) -> None:
            recorder.after(name, output)

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after))
    try:
        yield recorder.log
    finally:
        for handle in handles:
            handle.remove()


def compare_logs(a: ModuleLog, b: ModuleLog, *, skip: Sequence[str] = ()) -> Comparison:
    """Compare two logs of the same row; ``skip`` names modules whose outputs were pinned."""
    births: list[Birth] = []
    relative: dict[str, list[float]] = {}
    integers: list[tuple[str, str, list[int], list[int]]] = []
    first: tuple[str, int] | None = None
    unaligned = 0
    for key, cell_a in a.cells.items():
        cell_b = b.cells.get(key)
        pairs = [] if cell_b is None else _output_pairs(cell_a, cell_b)
        if cell_b is None or not pairs:
            unaligned += 1
            continue
        integers += _integer_differences(cell_a, cell_b)
        changed = sorted({t for x, y in pairs for t in differing_rows(x, y)})
        if cell_a.occurrence == 0:
            relative[cell_a.path] = _relative(*pairs[0])
        if not changed:
            continue
        first = first or (cell_a.path, changed[0])
        clean_until = _first_changed_input(cell_a, cell_b)
        own = [t for t in changed if clean_until is None or t < clean_until]
        if own and cell_a.inputs and cell_a.path not in skip:
            births.append(_birth(cell_a, pairs, own))
    return Comparison(tuple(births), relative, first, tuple(integers), unaligned)


def _output_pairs(a: Cell, b: Cell) -> list[tuple[Tensor, Tensor]]:
    pairs = []
    for left, right in zip(a.outputs, b.outputs, strict=False):
        match = _common(left, right)
        if match is not None and match[0].shape == match[1].shape:
            pairs.append(match)
    return pairs


def _common(left: dict[Kind, Any], right: dict[Kind, Any]) -> tuple[Any, Any] | None:
    """The two entries of one kind; a row that serves all (``1s``) matches a solo ``bs``."""
    for kind, value in left.items():
        for other in (kind, f"1{kind[1:]}", f"b{kind[1:]}"):
            if other in right:
                return value, right[other]
    return None


def _first_changed_input(a: Cell, b: Cell) -> int | None:
    """The first token at which any aligned input differs; None when none does."""
    first: int | None = None
    for name, kinds in a.inputs.items():
        match = _common(kinds, b.inputs.get(name, {}))
        if match is None or match[0][0] != match[1][0]:
            continue
        for token, (x, y) in enumerate(zip(match[0][1], match[1][1], strict=True)):
            if x != y:
                first = token if first is None else min(first, token)
                break
    return first


def _integer_differences(a: Cell, b: Cell) -> list[tuple[str, str, list[int], list[int]]]:
    return [
        (a.path, name, values, b.integers[name])
        for name, values in a.integers.items()
        if name in b.integers and values != b.integers[name]
    ]


def _relative(x: Tensor, y: Tensor) -> list[float]:
    """Per token: max |x - y| over max |x|; 0 where bits agree."""
    if not x.dtype.is_floating_point or x.numel() == 0:
        return [float(t in set(differing_rows(x, y))) for t in range(x.shape[0])]
    wide_x = x.reshape(x.shape[0], -1).double()
    delta = (wide_x - y.reshape(y.shape[0], -1).double()).abs().amax(-1)
    scale = wide_x.abs().amax(-1).clamp(min=1e-300)
    return [float(v) for v in delta / scale]


def _birth(cell: Cell, pairs: list[tuple[Tensor, Tensor]], own: list[int]) -> Birth:
    x, y = next((p for p in pairs if not bit_equal(*p)), pairs[0])
    index = torch.tensor([t for t in own if t < x.shape[0]], device=x.device)
    wide_x, wide_y = x[index].double(), y[index].double()
    delta = wide_x - wide_y
    scale = float(wide_x.pow(2).mean().sqrt()) or 1.0
    unit = torch.finfo(x.dtype).eps / 2 if x.dtype.is_floating_point else 1.0
    return Birth(
        path=cell.path,
        occurrence=cell.occurrence,
        cls=cell.cls,
        token=own[0],
        tokens=len(own),
        rms_units=float(delta.pow(2).mean().sqrt()) / scale / unit,
        max_abs=float(delta.abs().max()),
        dtype=str(x.dtype).removeprefix("torch."),
    )
