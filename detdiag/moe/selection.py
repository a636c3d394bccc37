"""Watch the calls that choose experts: ``topk``, ``sort``, ``argmax`` and their kin.

The scores that such a call compares are the only ones whose ties matter; a router's logits may
be rounded, biased or normalised before they get there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

CHOOSERS: Final = frozenset({"topk", "sort", "argsort", "argmax", "max", "multinomial"})
PROJECTIONS: Final = frozenset(
    {"linear", "matmul", "mm", "addmm", "bmm", "einsum", "__matmul__", "__rmatmul__", "baddbmm"}
)


@dataclass(slots=True)
class Selection:
    """One choosing call. ``scores`` (..., experts) is what was compared, ``ids`` (..., k) what
    was chosen in the order of the call, ``values`` the chosen scores where the call returns them.
    ``by_expert`` marks calls in which experts choose tokens (the token axis is the last one)."""

    name: str
    scores: Tensor
    ids: Tensor
    values: Tensor | None
    dim: int
    by_expert: bool = False


Override = Callable[[Selection], "tuple[Tensor | None, Tensor] | None"]


class SelectionLog(TorchFunctionMode):
    """Collects selections over ``experts`` columns, and the last projection to that many.

    ``experts`` None collects every choosing call (for discovery). ``override`` may answer with
    (values, ids) that the caller then gets instead.
    """

    def __init__(
        self,
        experts: int | None = None,
        on_selection: Callable[[Selection], None] | None = None,
        override: Override | None = None,
    ) -> None:
        super().__init__()
        self.experts = experts
        self.selections: list[Selection] = []
        self.logits: Tensor | None = None
        self._on_selection = on_selection
        self._override = override

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in CHOOSERS:
            return self._chosen(name, args, dict(kwargs or {}), result)
        if name in PROJECTIONS and isinstance(result, Tensor) and self._fits(result):
            self.logits = result.detach()
        return result

    def _fits(self, tensor: Tensor) -> bool:
        return self.experts is not None and tensor.dim() > 0 and tensor.shape[-1] == self.experts

    def _chosen(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Any:
        with torch._C.DisableTorchFunction():
            selection = _read(name, args, kwargs, result)
            if selection is None or (
                self.experts is not None and self.experts not in selection.scores.shape
            ):
                return result
            changed = self._override(selection) if self._override else None
        if changed is not None:
            values, ids = changed
            selection.ids = ids
            selection.values = values
            result = _replaced(result, values, ids)
        if self._on_selection is not None:
            self._on_selection(selection)
        else:
            self.selections.append(selection)
        return result


def _read(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Selection | None:
    scores = args[0] if args else kwargs.get("input", kwargs.get("self"))
    if not isinstance(scores, Tensor) or scores.dim() == 0 or scores.is_meta:
        return None
    position = {"topk": 2, "sort": 1, "argsort": 1, "argmax": 1, "max": 1}.get(name, 9)
    dim = kwargs.get("dim", args[position] if len(args) > position else -1)
    if not isinstance(dim, int):
        return None
    dim %= scores.dim()
    if isinstance(result, Tensor):
        ids, values = result, None
        if name == "max" or ids.is_floating_point():
            return None
    else:
        try:
            values, ids = result[0], result[1]
        except (TypeError, IndexError):
            return None
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dtype == torch.bool:
        return None
    if name in {"argmax", "max"} and ids.dim() < scores.dim():
        ids = ids.unsqueeze(dim)
        values = values.unsqueeze(dim) if isinstance(values, Tensor) else None
    # What was compared may be changed in place by later lines of the router.
    return Selection(name, scores.detach().clone(), ids.detach().clone(), values, dim)


def _replaced(result: Any, values: Tensor | None, ids: Tensor) -> Any:
    if isinstance(result, Tensor):
        return ids.reshape(result.shape)
    values = result[0] if values is None else values.reshape(result[0].shape).to(result[0].dtype)
    ids = ids.reshape(result[1].shape)
    try:
        return type(result)((values, ids))
    except TypeError:
        return values, ids
