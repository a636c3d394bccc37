"""Where in the network the forward is: module paths by hooks, innermost last."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import nn


class Frame(NamedTuple):
    """One module call: dotted path (empty for the root) and how often it ran before."""

    path: str
    call: int


class ModuleStack:
    """The modules that are running now, and counts of finished root calls (steps)."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.counts: Counter[str] = Counter()
        self.steps = 0

    @property
    def top(self) -> Frame:
        return self.frames[-1] if self.frames else Frame("", max(self.steps - 1, 0))

    @property
    def step(self) -> int:
        return max(self.steps - 1, 0)


Hook = Callable[[Frame, Any], None]


@contextlib.contextmanager
def tracked(
    model: nn.Module,
    *,
    enter: Hook | None = None,
    leave: Callable[[Frame, Any], Any] | None = None,
) -> Iterator[ModuleStack]:
    """Track module calls of ``model``; ``enter`` sees (frame, (args, kwargs)), ``leave`` (frame,
    output) and may return a replacement output.

    Hooks sit around the hooks that a model already carries, so work done in those belongs to
    the module they hang on.
    """
    model = getattr(model, "_orig_mod", model)
    stack = ModuleStack()
    handles = []
    for path, module in model.named_modules():
        if hasattr(module, "_orig_mod") or type(module).__module__.startswith("torch.jit"):
            continue
        clean = ".".join(p for p in path.split(".") if p != "_orig_mod")
        pre, post = _hooks(stack, clean, enter, leave)
        handles.append(module.register_forward_pre_hook(pre, prepend=True, with_kwargs=True))
        handles.append(module.register_forward_hook(post))
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


def _hooks(
    stack: ModuleStack,
    path: str,
    enter: Hook | None,
    leave: Callable[[Frame, Any], Any] | None,
) -> tuple[Callable[..., None], Callable[..., Any]]:
    def pre(module: nn.Module, args: Any, kwargs: Any) -> None:
        if path == "":
            stack.frames.clear()  # an earlier forward may have raised half-way
        if not stack.frames:
            stack.steps += 1
        frame = Frame(path, stack.counts[path])
        stack.counts[path] += 1
        stack.frames.append(frame)
        if enter is not None:
            enter(frame, (args, kwargs))

    def post(module: nn.Module, args: Any, output: Any) -> Any:
        while stack.frames and stack.frames[-1].path != path:
            stack.frames.pop()  # a module below raised and was caught
        frame = stack.frames[-1] if stack.frames else Frame(path, 0)
        result = leave(frame, output) if leave is not None else None
        if stack.frames:
            stack.frames.pop()
        return result

    return pre, post
