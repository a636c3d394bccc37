"""What an adapter is: it recognises a file by its content and yields exchanges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from detdiag.evidence.adapters.document import Document
from detdiag.evidence.observation import Observation, Output


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what came back, in the words of the log.

    ``response`` is the decoded body where the log kept it; ``output`` is what the adapter put
    together where it did not. ``replica`` maps label names (model id, server address, region) to
    values; together they name one replica. Times are seconds since 1970. ``left_out`` is the
    reason why this exchange carries no evidence. ``line`` is the 1-based line or entry of the file.
    ``parameters_recorded`` is false where the log keeps the prompt and nothing of the parameters:
    a temperature that is absent there may have been sent. ``bare`` is ``output`` without its
    reasoning, where it has some.
    """

    line: int
    id: str | None = None
    request: Mapping[str, Any] | None = None
    response: Any = None
    output: Output | None = None
    surface: str | None = None
    factors: Mapping[str, Any] = field(default_factory=dict)
    replica: Mapping[str, str] = field(default_factory=dict)
    start_s: float | None = None
    end_s: float | None = None
    query: str | None = None
    left_out: str | None = None
    parameters_recorded: bool = True
    bare: Output | None = None


@dataclass(frozen=True, slots=True)
class Broken:
    """A line or entry that could not be read, and why."""

    line: int
    why: str


@dataclass(frozen=True, slots=True)
class Adapted:
    """Observations of one file. ``lacks`` names channels that no observation of the file has;
    ``notes`` are counted sentences about what was left out or merged."""

    observations: tuple[Observation, ...]
    format: str
    lacks: tuple[str, ...]
    broken: tuple[tuple[int, str], ...]
    notes: tuple[str, ...] = ()
    calls: int = 0
    """Calls to a model that the file holds, those without a usable answer included."""
    read_with: str | None = None
    """The file of spans that some of these events were read with; their observations are there."""


class Adapter(Protocol):
    """One log format. ``name`` is its title; ``lacks`` says what the format cannot carry at all.

    ``matches`` is asked with the decoded document and answers by content, never by file name.
    """

    name: str
    lacks: tuple[str, ...]

    def matches(self, document: Document) -> bool: ...

    def exchanges(self, document: Document) -> Iterator[Exchange | Broken]: ...
