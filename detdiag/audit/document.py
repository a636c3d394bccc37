"""What one file (or one part of it) says: a role, a surface, and where each field stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from detdiag.audit.launch import Launch
from detdiag.audit.surfaces import Role


@dataclass(frozen=True, slots=True)
class Document:
    """One piece of configuration.

    ``data`` is the JSON body (request, call, model file, response, settings), the PARAMETER
    lines of a Modelfile, or empty for a launch, which has ``launch``. ``said`` tells that the
    content itself names the surface; ``candidates`` lists what it could be where it does not.
    ``locate`` gives the 1-based line of a key path.
    """

    path: str
    role: Role | str
    surface: str | None
    data: Mapping[str, Any] = field(default_factory=dict)
    launch: Launch | None = None
    said: bool = False
    candidates: tuple[str, ...] = ()
    version: str | None = None
    format: str = "json"
    text: str = ""
    locate: Callable[[tuple[str | int, ...]], int] = lambda path: 1
    prefix: tuple[str | int, ...] = ()
    """Where ``data`` sits inside the file (empty for the whole file)."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Facts of the surroundings, for example ``replicas`` of a Kubernetes object."""

    def where(self, path: tuple[str | int, ...] = ()) -> str:
        """``path:line`` of a field."""
        return f"{self.path}:{self.locate((*self.prefix, *path))}"


def launch_document(name: str, launch: Launch, text: str, format_: str) -> Document:
    """A document around a server start."""
    return Document(
        name,
        "launch",
        launch.surface,
        launch=launch,
        said=True,
        version=launch.version,
        format=format_,
        text=text,
        locate=partial(fixed_line, launch.line),
    )


def fixed_line(line: int, path: tuple[str | int, ...]) -> int:
    """A ``locate`` (its first argument bound) for what stands on one line."""
    return line
