"""Bodies of replies without their requests: readable, but nobody can say what repeats what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from detdiag.evidence.adapters import bodies
from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.interface import Broken, Exchange
from detdiag.evidence.adapters.shape import obj
from detdiag.evidence.adapters.surfaces import surface_of

name: Final = "response bodies without requests"
lacks: Final = ("prompt", "wire body", "batch", "expert routing")


def matches(document: Document) -> bool:
    return any(_is_reply(row) for row in document.sample())


def exchanges(document: Document) -> Iterator[Exchange | Broken]:
    for line, row in document.rows:
        if _is_reply(row):
            yield Exchange(line=line, response=row, surface=surface_of(None, None, row))
        elif obj(row).get("error"):
            yield Exchange(line=line, response=row)
        else:
            yield Broken(line, "not the reply of a known server")


def _is_reply(row: object) -> bool:
    """A server's own shape; some record with a field called text is not enough."""
    family = bodies.family_of(row)
    return family is not None and family is not bodies.FAMILIES[-1]
