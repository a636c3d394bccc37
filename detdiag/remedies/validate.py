"""Ask again until the answer has the right shape. That mends form; content stays as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from detdiag.errors import DetdiagError


@dataclass(frozen=True, slots=True)
class Validated:
    """``value`` passed the schema on attempt ``attempts``; ``errors`` are those before it."""

    value: Any
    attempts: int
    errors: tuple[str, ...] = field(default=())


class NotValid(DetdiagError):
    """No attempt passed; ``errors`` has one line an attempt."""

    def __init__(self, errors: tuple[str, ...]) -> None:
        super().__init__(f"no answer passed the schema in {len(errors)} attempts: {errors[-1]}")
        self.errors = errors


def validated(call: Callable[[str | None], Any], schema: Any, retries: int = 2) -> Validated:
    """``call`` until its answer fits ``schema``; at most ``retries`` further calls.

    ``call`` gets None at first and then the error of the attempt before, to put into the prompt or
    to ignore. A text answer is parsed as JSON (a fenced block around it is taken off). ``schema``
    is a JSON Schema (a mapping; needs the ``jsonschema`` package) or a pydantic model class, whose
    instance is then the value. Raises :class:`NotValid`.
    """
    check = _checker(schema)
    errors: list[str] = []
    for attempt in range(1, retries + 2):
        try:
            value = check(_parsed(call(errors[-1] if errors else None)))
        except _Mismatch as mismatch:
            errors.append(str(mismatch))
            continue
        return Validated(value, attempt, tuple(errors))
    raise NotValid(tuple(errors))


class _Mismatch(Exception):
    pass


_FENCE = re.compile(r"\A\s*```[a-zA-Z]*\s*\n(.*?)\n?```\s*\Z", re.S)


def _parsed(answer: Any) -> Any:
    if not isinstance(answer, (str, bytes)):
        return answer
    text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else answer
    fenced = _FENCE.match(text)
    try:
        return json.loads(fenced[1] if fenced else text)
    except ValueError as error:
        raise _Mismatch(f"not JSON: {error}") from error


def _checker(schema: Any) -> Callable[[Any], Any]:
    if hasattr(schema, "model_validate"):
        return lambda value: _pydantic(schema, value)
    if not isinstance(schema, Mapping):
        raise DetdiagError("schema: expected a JSON Schema or a pydantic model class")
    try:
        import jsonschema  # type: ignore[import-untyped]
    except ImportError as error:
        raise DetdiagError(
            "validating against a JSON Schema needs the jsonschema package",
            tip="pip install jsonschema, or give a pydantic model class",
        ) from error
    kind = jsonschema.validators.validator_for(schema)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise DetdiagError(f"schema is no valid JSON Schema: {error.message}") from error
    validator = kind(schema)

    def check(value: Any) -> Any:
        problems = sorted(validator.iter_errors(value), key=lambda e: list(map(str, e.path)))
        if problems:
            place = "/".join(map(str, problems[0].path))
            raise _Mismatch(f"{place or 'value'}: {problems[0].message}"[:300])
        return value

    return check


def _pydantic(model: Any, value: Any) -> Any:
    from pydantic import ValidationError

    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = "/".join(map(str, first["loc"]))
        raise _Mismatch(f"{place or 'value'}: {first['msg']}"[:300]) from error
