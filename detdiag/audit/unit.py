"""The unit of an audit: one request in its deployment, and how it looks at some versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from detdiag.audit.document import Document
from detdiag.audit.engines import Effective, Inputs
from detdiag.audit.facts import Facts, RequestView
from detdiag.audit.surfaces import Surface


@dataclass(slots=True)
class Unit:
    """One request (or none) seen together with the launch, files and call around it."""

    surfaces: tuple[str, ...]
    surface: Surface
    engine: str
    documents: Mapping[str, Document]
    view: RequestView
    base: Inputs
    extras: dict[str, Any] = field(default_factory=dict)

    @property
    def response(self) -> bool:
        """Whether the unit is an answer and not a request."""
        request = self.documents.get("request")
        return request is not None and request.role == "response"


@dataclass(slots=True)
class Look:
    """Effective parameters and facts over stretches of versions that agree on them."""

    epochs: list[int]
    effective: Effective
    facts: Facts
