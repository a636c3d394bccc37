"""Pinned routing: a token that was seen before goes to the experts it went to then."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from detdiag.errors import DetdiagError


@dataclass(slots=True)
class Routes:
    """``recorded`` and ``replayed`` count tokens times routers."""

    table: dict[tuple[int, bytes], tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)
    recorded: int = 0
    replayed: int = 0


@contextlib.contextmanager
def pinned_routing(model: nn.Module, routes: Routes | None = None) -> Iterator[Routes]:
    """Record the experts of every token on first sight and replay them afterwards.

    A token is known by its row's real tokens up to and with it, so the pin holds in any batch, at
    any place, and in decode steps over a cache. Where experts are called with ids and weights
    (most models), ids and their order are replayed there, and the weights stay the running ones
    as long as the experts are the same, else they are replayed too. Elsewhere the choosing call is
    answered for. ``routes`` goes on with an earlier recording; storage is 2k small numbers a
    token and router. Two forwards on 26 tokens find the routers. Raises :class:`DetdiagError` where
    no router chooses by scores.

    It takes routing out of a difference and nothing else: scores that move keep moving, and
    tokens dropped for capacity after the choice are dropped still.
    """
    from detdiag.moe.capture import capture

    usable, at_experts = _routers(model)
    kept = routes if routes is not None else Routes()
    rows = _Rows()
    with contextlib.ExitStack() as stack:
        recorded = stack.enter_context(
            capture(
                model,
                usable,
                override=lambda r: None if r.index in at_experts else _answers(r, rows, kept),
            )
        )

        def enter(_module: nn.Module, args: Any, kwargs: Any) -> None:
            recorded.calls.clear()
            rows.step(args, kwargs)

        hook = model.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
        stack.callback(hook.remove)
        for router in usable:
            if router.index in at_experts:
                experts = model.get_submodule(router.experts_path)
                hook = experts.register_forward_pre_hook(
                    _replays(router, rows, kept), prepend=True, with_kwargs=True
                )
                stack.callback(hook.remove)
        yield kept


def _routers(model: nn.Module) -> tuple[list[Any], set[int]]:
    """Routers that choose by score, and which of them hand (tokens, k) ids to their experts."""
    from detdiag.moe.capture import capture
    from detdiag.moe.discover import find_routers, may_have_experts

    with torch.random.fork_rng(), torch.no_grad():
        routers = find_routers(model) if may_have_experts(model) else ()
        usable = [r for r in routers if r.kind == "token_choice"]
        if not usable:
            raise DetdiagError("the model has no router that chooses experts by score")
        device = next(model.parameters()).device
        with capture(model, usable) as seen:
            model(input_ids=torch.arange(3, 16, device=device)[None].expand(2, -1))
    plain = {
        c.router.index
        for c in seen.calls
        if c.ids is not None and c.weights is not None and c.ids.shape == (26, c.router.top_k)
    }
    return usable, plain


def _replays(router: Any, rows: _Rows, kept: Routes) -> Callable[..., Any]:
    """A pre-hook of the experts that puts recorded ids and weights in the place of given ones."""

    def pin(_module: nn.Module, args: Any, kwargs: Any) -> Any:
        given = [*enumerate(args), *kwargs.items()]
        ids = next((k for k, v in given if _is_ids(v, router.top_k)), None)
        if ids is None:
            return None
        values = dict(given)
        shape = values[ids].shape
        weights = next(
            (k for k, v in given if isinstance(v, Tensor) and v.shape == shape and k != ids), None
        )
        if weights is None or len(rows.keys) != shape[0]:
            return None
        values[ids], values[weights] = _pinned(router, rows, kept, values[ids], values[weights])
        return tuple(values[i] for i in range(len(args))), {k: values[k] for k in kwargs}

    return pin


def _is_ids(value: Any, top_k: int) -> bool:
    plain = isinstance(value, Tensor) and value.dim() == 2 and value.shape[1] == top_k
    return plain and not value.is_floating_point() and value.dtype != torch.bool


def _pinned(
    router: Any, rows: _Rows, kept: Routes, ids: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    new_ids, new_weights = ids.clone(), weights.clone()
    for place, key in enumerate(rows.keys):
        if key is None:
            continue
        known = kept.table.get((router.index, key))
        if known is None:
            pair = ids[place].to("cpu", copy=True), weights[place].to("cpu", copy=True)
            kept.table[(router.index, key)] = pair
            kept.recorded += 1
            continue
        kept.replayed += 1
        then = known[0].to(ids.device)
        match = then[:, None] == ids[place][None, :]
        new_ids[place] = then
        same = bool(match.any(1).all())
        new_weights[place] = (
            weights[place][match.to(torch.int64).argmax(1)] if same else known[1].to(weights)
        )
    return new_ids, new_weights


def _answers(router: Any, rows: _Rows, kept: Routes) -> Callable[[Any], Any]:
    """The choosing call's values and ids, with recorded ids."""

    def answer(selection: Any) -> tuple[Tensor | None, Tensor] | None:
        scores = selection.scores.movedim(selection.dim, -1)
        ids = selection.ids.movedim(selection.dim, -1)
        if scores.shape[-1] != router.experts or ids.shape[-1] != router.top_k:
            return None
        flat = ids.reshape(-1, router.top_k)
        if len(rows.keys) != flat.shape[0]:
            return None
        flat_scores = scores.reshape(-1, router.experts)
        flat, _ = _pinned(router, rows, kept, flat, flat_scores.gather(-1, flat))
        values = flat_scores.gather(-1, flat)
        shape, dim = ids.shape, selection.dim
        return values.reshape(shape).movedim(-1, dim), flat.reshape(shape).movedim(-1, dim)

    return answer


class _Rows:
    """One key a column of the running step, row after row; None for padding."""

    def __init__(self) -> None:
        self.prefixes: list[Any] = []
        self.keys: list[bytes | None] = []

    def step(self, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.keys = []
        if not isinstance(ids, Tensor) or ids.dim() != 2 or ids.is_floating_point():
            return
        n, length = ids.shape
        mask = kwargs.get("attention_mask")
        real = torch.ones_like(ids, dtype=torch.bool)
        if isinstance(mask, Tensor) and mask.dim() == 2:
            real = mask[:, -length:].bool()
        if not (_past(kwargs) and len(self.prefixes) == n):
            self.prefixes = [hashlib.blake2b(digest_size=16) for _ in range(n)]
        for row, (tokens, shown) in enumerate(zip(ids.tolist(), real.tolist(), strict=True)):
            for token, is_real in zip(tokens, shown, strict=True):
                if is_real:
                    self.prefixes[row].update(int(token).to_bytes(8, "little"))
                self.keys.append(self.prefixes[row].digest() if is_real else None)


def _past(kwargs: Any) -> bool:
    length_of = getattr(kwargs.get("past_key_values"), "get_seq_length", None)
    return bool(length_of is not None and int(length_of()) > 0)
