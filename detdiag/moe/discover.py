"""Find a model's routers by structure, without a list of families.

A router is a module in whose forward a choosing call (``topk``, ``argmax`` ...) compares as many
scores per token as some module nearby holds experts. One calibration forward on a few token ids
shows it. A container of experts is a list of modules of one shape, or a module whose stacked
parameters share their first axis.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from detdiag.moe.selection import Selection, SelectionLog

RouterKind = Literal["token_choice", "expert_choice", "table"]

CALIBRATION_TOKENS: Final = 13
"""Two rows of this many tokens: a prime that is rarely anyone's number of experts."""

_HINT: Final = re.compile(r"expert|router|routing|gat(e|ing)$|moe", re.IGNORECASE)
_TOP_K_NAMES: Final = (
    "top_k",
    "topk",
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_top_k",
    "moe_topk",
    "experts_per_token",
    "num_selected_experts",
    "moe_k",
    "k",
)


@dataclass(frozen=True, slots=True)
class Router:
    """One routed block. ``path`` is the module that chooses, ``block_path`` the smallest module
    that holds both it and the experts, ``experts_path`` the container of the experts.

    ``experts`` counts the columns that are compared, ``top_k`` the experts per token. ``kind``
    ``table`` chooses by token id without comparing scores.
    """

    index: int
    path: str
    block_path: str
    experts_path: str | None
    experts: int
    top_k: int
    kind: RouterKind = "token_choice"


@dataclass(frozen=True, slots=True)
class _Container:
    path: str
    experts: int


def may_have_experts(model: nn.Module) -> bool:
    """Does anything in the model look like experts? Cheap: no forward, wide on purpose."""
    if _containers(model):
        return True
    return any("expert" in n.lower() or "router" in n.lower() for n, _ in model.named_parameters())


def find_routers(
    model: nn.Module, run: Callable[[nn.Module, Tensor], Any] | None = None
) -> tuple[Router, ...]:
    """Routers in the order in which a forward pass reaches them; empty for a dense model.

    ``run(model, input_ids)`` does one forward on int64 ids (2, 13); the default calls the model.
    """
    containers = _containers(model)
    if not containers:
        return ()
    ids = _calibration_ids(model)
    seen: list[tuple[tuple[str, ...], Selection]] = []
    calls: list[tuple[str, Tensor]] = []
    with torch.no_grad(), _module_stack(model, containers, calls) as stack:
        log = SelectionLog(on_selection=lambda s: seen.append((tuple(stack), s)))
        with log:
            (run or _plain)(model, ids)
    return _routers(model, containers, seen, calls, ids.numel())


def _plain(model: nn.Module, ids: Tensor) -> Any:
    return model(input_ids=ids, use_cache=False)


def _calibration_ids(model: nn.Module) -> Tensor:
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = int(getattr(text, "vocab_size", 0) or 64)
    device = next(model.parameters()).device
    count = 2 * CALIBRATION_TOKENS
    ids = torch.arange(count, device=device) * 7 % max(vocabulary - 4, 1) + min(3, vocabulary - 1)
    return ids.reshape(2, CALIBRATION_TOKENS)


def _containers(model: nn.Module) -> dict[str, _Container]:
    """Candidate expert containers by path; wide on purpose, the forward pass decides."""
    found = {}
    for path, module in model.named_modules():
        size = _listed_experts(path, module) or _stacked_experts(path, module)
        if size:
            found[path] = _Container(path, size)
    return found


def _listed_experts(path: str, module: nn.Module) -> int:
    """Number of equally shaped children, for a container below the trunk of decoder layers."""
    children = list(module.children())
    if len(children) < 2 or not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
        return 0
    nested = any(part.isdigit() for part in path.split("."))
    if not nested and not _HINT.search(path):
        return 0
    shapes = {tuple(p.shape for p in child.parameters()) for child in children}
    return len(children) if len(shapes) == 1 and shapes != {()} else 0


def _stacked_experts(path: str, module: nn.Module) -> int:
    """Shared first axis of the module's own stacked parameters."""
    parameters = list(module.parameters(recurse=False))
    deep = [p.shape[0] for p in parameters if p.dim() >= 3]
    if deep and not isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        size, _ = Counter(deep).most_common(1)[0]
        return int(size) if size >= 2 else 0
    declared = getattr(module, "num_experts", None)
    parameters = parameters or list(module.parameters())
    named = "expert" in f"{path.rpartition('.')[2]} {type(module).__name__}".lower()
    if isinstance(declared, int) and declared >= 2 and parameters and named:
        return declared
    return 0


@contextmanager
def _module_stack(
    model: nn.Module, containers: dict[str, _Container], calls: list[tuple[str, Tensor]]
) -> Iterator[list[str]]:
    """Paths of the modules that are running now, innermost last; also notes the integer tensors
    that containers are called with."""
    stack: list[str] = []
    handles = []
    for path, module in model.named_modules():
        handles.append(
            module.register_forward_pre_hook(
                lambda _m, args, kwargs, path=path: _enter(
                    stack, path, containers, calls, args, kwargs
                ),
                with_kwargs=True,
            )
        )
        handles.append(module.register_forward_hook(lambda *_: _leave(stack), always_call=True))
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


def _enter(
    stack: list[str],
    path: str,
    containers: dict[str, _Container],
    calls: list[tuple[str, Tensor]],
    args: Any,
    kwargs: Any,
) -> None:
    stack.append(path)
    if path in containers:
        calls.extend(
            (path, value.detach().clone())
            for value in (*args, *kwargs.values())
            if isinstance(value, Tensor) and value.dtype in (torch.int32, torch.int64)
        )


def _leave(stack: list[str]) -> None:
    stack.pop()


def _routers(
    model: nn.Module,
    containers: dict[str, _Container],
    seen: list[tuple[tuple[str, ...], Selection]],
    calls: list[tuple[str, Tensor]],
    tokens: int,
) -> tuple[Router, ...]:
    found: dict[str, Router] = {}
    for stack, selection in seen:
        router = _match(model, containers, stack, selection, tokens)
        if router is None:
            continue
        known = found.get(router.path)
        # Group-limited routers choose groups first: the last call over the experts decides.
        index = len(found) if known is None else known.index
        found[router.path] = replace(router, index=index)
    found = {key: _with_given_k(router, calls, tokens) for key, router in found.items()}
    claimed = {r.experts_path for r in found.values()}
    for path, ids in calls:
        if path in claimed or ids.dim() != 2 or ids.shape[0] != tokens:
            continue
        claimed.add(path)
        parent = path.rpartition(".")[0]
        router = Router(
            len(found), parent, parent, path, containers[path].experts, ids.shape[1], "table"
        )
        found[f"table:{parent}"] = router
    return _in_depth_order(model, found.values())


def _with_given_k(router: Router, calls: list[tuple[str, Tensor]], tokens: int) -> Router:
    """Experts per token as the container was told; a router may choose one at a time."""
    for path, ids in calls:
        if path == router.experts_path and ids.dim() == 2 and ids.shape[0] == tokens:
            if 0 < ids.shape[1] < router.experts:
                return replace(router, top_k=ids.shape[1])
    return router


def _in_depth_order(model: nn.Module, routers: Any) -> tuple[Router, ...]:
    order = {path: i for i, (path, _) in enumerate(model.named_modules())}
    ranked = sorted(routers, key=lambda r: order.get(r.block_path, 0))
    return tuple(replace(r, index=i) for i, r in enumerate(ranked))


def _match(
    model: nn.Module,
    containers: dict[str, _Container],
    stack: tuple[str, ...],
    selection: Selection,
    tokens: int,
) -> Router | None:
    path = stack[-1] if stack else ""
    kind: RouterKind = "token_choice"
    experts = selection.scores.shape[selection.dim]
    if selection.scores.numel() != experts * tokens:
        return None
    if experts == tokens and selection.scores.shape[0] < tokens:
        return None
    if experts in (tokens, CALIBRATION_TOKENS):
        kind, experts = "expert_choice", selection.scores.numel() // experts
    for owner in _owners(path):
        if owner not in stack:
            # A module whose parts are called by hand never runs as a whole.
            continue
        container = _container_below(containers, owner, experts)
        if container is None:
            continue
        if _layer_depth(owner) < 1 and owner != "":
            return None
        top_k = _top_k(model, model.get_submodule(path), selection)
        return Router(0, path, owner, container.path, experts, top_k, kind)
    return None


def _owners(path: str) -> Iterator[str]:
    """``path`` and its ancestors up to the decoder layer."""
    while path:
        yield path
        if _is_layer(path):
            return
        path = path.rpartition(".")[0]


def _is_layer(path: str) -> bool:
    """Is this an element of the trunk (the first numbered part of the path is its last)?"""
    parts = path.split(".")
    numbered = [i for i, part in enumerate(parts) if part.isdigit()]
    return bool(numbered) and numbered[0] == len(parts) - 1


def _layer_depth(path: str) -> int:
    return sum(part.isdigit() for part in path.split("."))


def _container_below(
    containers: dict[str, _Container], owner: str, experts: int
) -> _Container | None:
    """The container inside ``owner`` that fits ``experts`` columns; a router may have a few more
    columns than experts (zero or skip experts), if the names say that they belong together."""
    inside = [c for p, c in containers.items() if p == owner or p.startswith(f"{owner}.")]
    exact = [c for c in inside if c.experts == experts]
    if exact:
        return max(exact, key=lambda c: ("expert" in c.path.lower(), -len(c.path)))
    near = [
        c for c in inside if c.experts < experts <= 2 * c.experts and "expert" in c.path.lower()
    ]
    return near[0] if near else None


def _top_k(model: nn.Module, module: nn.Module, selection: Selection) -> int:
    chosen = selection.ids.shape[selection.dim]
    if selection.name in {"topk", "argmax", "max", "multinomial"}:
        return int(chosen)
    for owner in (module, getattr(model, "config", None)):
        for name in _TOP_K_NAMES:
            value = getattr(owner, name, None)
            if isinstance(value, int) and 0 < value < chosen:
                return value
    return int(chosen)
