"""Who draws random numbers during a forward: the process's generators and a module's own."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(slots=True)
class Draws:
    """Modules during whose call a generator moved, innermost first; ``generators`` by name."""

    modules: list[str] = field(default_factory=list)
    generators: set[str] = field(default_factory=set)

    @property
    def any(self) -> bool:
        return bool(self.modules)


def _numpy() -> Any | None:
    return sys.modules.get("numpy")


def global_states() -> dict[str, Any]:
    """Comparable snapshots of every process-wide generator that is in use."""
    states: dict[str, Any] = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "random": random.getstate(),
    }
    numpy = _numpy()
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        states["numpy"] = (name, keys.tobytes(), *rest)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            states[f"cuda:{device}"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return states


def seed_all(seed: int) -> None:
    """Seed every process-wide generator."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = _numpy()
    if numpy is not None:
        numpy.random.seed(seed)


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Restore every process-wide generator on exit."""
    python_state = random.getstate()
    numpy = _numpy()
    numpy_state = None if numpy is None else numpy.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


def own_generators(module: Any) -> dict[str, Any]:
    """Snapshots of generator objects among ``module``'s plain attributes and code globals."""
    found: dict[str, Any] = {}
    spaces = {"self": vars(module)}
    code = sys.modules.get(type(module).__module__)
    if code is not None and not code.__name__.startswith(("torch.", "transformers.models.")):
        spaces[code.__name__.rsplit(".", 1)[-1]] = vars(code)
    for space, names in spaces.items():
        for name, value in list(names.items()):
            state = _state_of(value)
            if state is not None:
                found[f"{space}.{name}"] = state
    return found


def _state_of(value: Any) -> Any | None:
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    numpy = _numpy()
    if numpy is not None:
        if isinstance(value, numpy.random.Generator):
            return repr(value.bit_generator.state)
        if isinstance(value, numpy.random.RandomState):
            return repr(value.get_state())
    return None


@contextlib.contextmanager
def watching(model: Any) -> Iterator[Draws]:
    """Name the innermost modules during whose call a generator moved."""
    draws = Draws()
    stack: list[tuple[dict[str, Any], int]] = []
    handles = []
    for path, module in model.named_modules():
        name = path or type(model).__name__

        def before(mod: Any, args: Any) -> None:
            stack.append(({**global_states(), **own_generators(mod)}, len(draws.modules)))

        def after(mod: Any, args: Any, output: Any, name: str = name) -> None:
            if not stack:
                return
            earlier, known = stack.pop()
            now = {**global_states(), **own_generators(mod)}
            moved = {k for k, v in now.items() if k in earlier and earlier[k] != v}
            draws.generators |= moved
            if moved and len(draws.modules) == known:
                draws.modules.append(name)

        handles.append(module.register_forward_pre_hook(before))
        handles.append(module.register_forward_hook(after))
    try:
        yield draws
    finally:
        for handle in handles:
            handle.remove()
