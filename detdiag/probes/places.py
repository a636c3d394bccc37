"""What kind of module a path names."""

from __future__ import annotations

from typing import Any

import torch

_MOE_WORDS = ("moe", "expert", "router", "topk", "switch", "sparsemlp", "sparsemoe")


def module_at(model: Any, path: str) -> Any | None:
    """The module at ``path``; the model itself for its class name, None for an unknown path."""
    if path == type(model).__name__:
        return model
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None


def moe_part(model: Any, path: str) -> bool:
    """Is ``path`` a mixture-of-experts block, or inside one?"""
    parts = path.split(".")
    for end in range(1, len(parts) + 1):
        module = module_at(model, ".".join(parts[:end]))
        if module is None or isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        if hasattr(module, "experts") or type(module).__name__.endswith("Experts"):
            return True
        if any(word in type(module).__name__.lower() for word in _MOE_WORDS) and end > 1:
            return True
    return False


def is_gemm(model: Any, path: str) -> bool:
    """Is ``path`` one matrix multiplication (a linear layer of any make)?"""
    module = module_at(model, path)
    name = type(module).__name__
    return type(module) is torch.nn.Linear or name in {"Conv1D", "LinearLayer"}


def owner_of(model: Any, path: str) -> str:
    """The module that a dropout at ``path`` belongs to (its parent), else ``path`` itself."""
    module = module_at(model, path)
    if isinstance(module, torch.nn.modules.dropout._DropoutNd) and "." in path:
        return path.rsplit(".", 1)[0]
    return path


def training_modules(model: Any) -> list[str]:
    """Paths of modules that are in training mode (the model's class name for the model itself)."""
    return [path or type(model).__name__ for path, m in model.named_modules() if m.training]
