"""A setting's value in its type, or what was expected instead."""

from __future__ import annotations

import difflib
import re
from typing import Any

from detdiag.gate.options import Option
from detdiag.layers import LAYERS


def checked(option: Option, value: Any) -> Any:
    """``value`` in the option's type; :class:`ValueError` says what was expected."""
    match option.kind:
        case "choice":
            if value in option.choices:
                return value
            close = difflib.get_close_matches(str(value), option.choices, n=1)
            tip = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"expected {_or(option.choices)}, found {value!r}{tip}")
        case "share":
            if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1:
                return float(value)
            raise ValueError(f"expected a number between 0 and 1, found {value!r}")
        case "count":
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
            raise ValueError(f"expected a whole number of 1 or more, found {value!r}")
        case "rate":
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
                return float(value)
            raise ValueError(f"expected a number above 0, found {value!r}")
        case "time":
            if isinstance(value, str) and re.fullmatch(r"\s*\d+(\.\d+)?\s*[smh]?\s*", value):
                return value
            raise ValueError(f"expected a time such as '90s' or '3m', found {value!r}")
        case "paths" | "texts" | "layers":
            return _list(option, value)
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError(f"expected text, found {value!r}")
    return value


def seconds(text: str) -> float:
    """Seconds of a checked ``time``: ``90``, ``90s``, ``3m`` or ``1h``."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*", text)
    assert found is not None
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def _list(option: Option, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) and v for v in value):
        raise ValueError(f"expected a list of texts, found {value!r}")
    if option.kind == "layers":
        for name in value:
            if name not in LAYERS:
                close = difflib.get_close_matches(name, LAYERS, n=1)
                tip = f"did you mean {close[0]!r}?" if close else "one of " + ", ".join(LAYERS)
                raise ValueError(f"unknown layer {name!r}; {tip}")
    return tuple(value)


def _or(choices: tuple[str, ...]) -> str:
    return f"{', '.join(choices[:-1])} or {choices[-1]}"
