"""detdiag's own observation lines, read as evidence from a file of any name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from detdiag.errors import DetdiagError
from detdiag.evidence.adapters import bodies
from detdiag.evidence.adapters.document import Document
from detdiag.evidence.adapters.factors import prompt_token_ids, response_factors
from detdiag.evidence.adapters.interface import Adapted
from detdiag.evidence.adapters.lacks import absent_channels
from detdiag.evidence.adapters.shape import obj
from detdiag.evidence.observation import Observation, Output

name: Final = "detdiag observations"


def matches(document: Document) -> bool:
    rows = document.sample()
    return bool(rows) and all("id" in row for row in rows) and any(_is_own(row) for row in rows)


def adapted(document: Document) -> Adapted:
    """Lines through ``Observation.from_dict``; a line it refuses is counted as broken."""
    found: list[Observation] = []
    broken = list(document.broken)
    for line, row in document.rows:
        try:
            one = Observation.from_dict(row, path=str(document.path), line=line)
            found.append(with_response(one))
        except (DetdiagError, ValueError, OverflowError) as error:
            broken.append((line, getattr(error, "message", str(error))))
    absent = absent_channels(found)
    return Adapted(tuple(found), name, absent, tuple(sorted(broken)), (), len(found))


def with_response(one: Observation) -> Observation:
    """Fill output, prompt ids and factors from a raw ``response`` body where the line has none."""
    if one.response is None:
        return one
    outputs = bodies.outputs(one.response)
    return replace(
        one,
        output=outputs[0] if one.output == Output() and outputs else one.output,
        prompt_token_ids=one.prompt_token_ids or prompt_token_ids(one.response),
        factors={**response_factors(one.response), **one.factors},
    )


def _is_own(row: Mapping[str, Any]) -> bool:
    if isinstance(row.get("factors"), Mapping) and ("output" in row or "response" in row):
        return True
    own = any(key in obj(row.get("output")) for key in ("token_ids", "positions", "text"))
    return own and ("query" in row or "request" in row)
