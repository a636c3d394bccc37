"""Replay born operators on equal input at both shapes, inside one batched forward."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from detdiag.trace.bits import bit_equal, ulp_distance
from detdiag.trace.calls import ForwardCall
from detdiag.trace.graft import Running, Site, tapped
from detdiag.trace.rows import RowStats, RowWise, constants_of
from detdiag.trace.schema import op_info, tensors_in

SDPA = "aten.scaled_dot_product_attention"


def replay(
    model: nn.Module, call: ForwardCall, sites: list[Site], row: int
) -> tuple[dict[str, Any], ...]:
    """For each site: the call again at the batch's shape, and at the row's own shape.

    ``repeats`` says whether the same shape gives the same bits; ``replay_differs`` whether the
    row's shape gives other bits on the same input (None where the call cannot be split).
    """
    wanted = set(sites)
    results: list[dict[str, Any]] = []
    layouts = call.layouts()
    constants = constants_of(model)

    def touch(running: Running) -> None:
        if running.site not in wanted:
            return
        layout = layouts[min(running.site[1].call, len(layouts) - 1)]
        with contextlib.suppress(RuntimeError, IndexError):
            results.append(_replayed(running, layout, row, constants))

    with tapped(model, frozenset(s[0] for s in sites), touch):
        call.run(model)
    return tuple(results)


def _replayed(running: Running, layout: Any, row: int, constants: Any) -> dict[str, Any]:
    name, frame, _ = running.site
    info = op_info(running.func)
    out: dict[str, Any] = {"op": name, "module": frame.path, "repeats": None}
    out |= {"replay_differs": None, "max_ulp": None, "differing": None, "dispatch": ""}
    if info.writes:
        out["dispatch"] = "writes in place: not replayed"
        return out
    again = tensors_in(running.func(*running.args, **running.kwargs))
    first = tensors_in(running.out)
    out["repeats"] = all(bit_equal(a, b) for a, b in zip(first, again, strict=True))
    mode = RowWise(lambda *_: True, lambda: layout, None, RowStats(), constants)  # type: ignore[arg-type]
    rows = mode._rows(running.func, name, info.arguments, running.args, running.kwargs)
    if rows is not None:
        mine = tensors_in(rows)
        pairs = [_real(a, b, layout, row) for a, b in zip(first, mine, strict=True)]
        ulps = [ulp_distance(a, b) for a, b in pairs]
        out["replay_differs"] = not all(bit_equal(a, b) for a, b in pairs)
        out["max_ulp"] = max((int(u.max()) for u in ulps if u.numel()), default=0)
        out["differing"] = sum(int((u > 0).sum()) for u in ulps)
    out["dispatch"] = explain(running)
    return out


def _real(whole: Tensor, rows: Tensor, layout: Any, row: int) -> tuple[Tensor, Tensor]:
    """The row's real tokens of both results (padding positions hold zeros in the second)."""
    fold = whole.shape[0] == layout.n * layout.length and layout.n > 1
    shape = (layout.n, layout.length, *whole.shape[1:]) if fold else tuple(whole.shape)
    a, b = whole.reshape(shape)[row], rows.reshape(shape)[row]
    for axis in range(min(2, a.dim())):
        if a.shape[axis] == layout.length and layout.padded(row):
            index = torch.tensor(layout.real[row], device=a.device)
            return a.index_select(axis, index), b.index_select(axis, index)
    return a, b


def explain(running: Running) -> str:
    """What the kernel choice can depend on, where it can be told from outside."""
    tensors = [t for t in running.args if isinstance(t, Tensor)]
    if running.site[0] == SDPA:
        return _attention_text(running)
    if running.site[0] in ("aten.linear", "aten.mm", "aten.addmm", "aten.matmul") and tensors:
        a, b = tensors[0], tensors[-1]
        m = a.numel() // a.shape[-1]
        return f"GEMM with M={m}, K={a.shape[-1]}, N={b.shape[0]} in {_short(a.dtype)}"
    return f"shapes {', '.join('x'.join(map(str, t.shape)) for t in tensors[:3])}"


def _attention_text(running: Running) -> str:
    values = dict(zip(op_info(running.func).arguments, running.args, strict=False))
    values |= running.kwargs
    mask = values.get("attn_mask")
    form = "no mask" if mask is None else f"a {_short(mask.dtype)} mask {tuple(mask.shape)}"
    causal = ", is_causal" if values.get("is_causal") else ""
    backend = attention_backend(running.func, running.args, running.kwargs, running.out)
    return f"attention with {form}{causal}; bits match the {backend} backend"


def attention_backend(func: Any, args: Any, kwargs: Any, out: Tensor) -> str:
    """Name of the first backend whose bits equal ``out``, or ``unknown``."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    names = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")
    for name in names:
        backend = getattr(SDPBackend, name, None)
        if backend is None:
            continue
        with contextlib.suppress(RuntimeError), sdpa_kernel(backend):
            if bit_equal(func(*args, **kwargs), out):
                return name.lower()
    return "unknown"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
