"""The message catalogue: every fixed sentence of a report in every language, in one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, get_args

from detdiag.errors import DetdiagError

Lang = Literal["en", "zh"]
LANGS: Final[tuple[Lang, ...]] = get_args(Lang)
HTML_LANG: Final[dict[Lang, str]] = {"en": "en", "zh": "zh-Hans"}

Say = Callable[..., str]
"""``say("key", name=value)`` gives the sentence in the language it was made for."""


@lru_cache(maxsize=1)
def catalogue() -> dict[str, dict[str, str]]:
    """``{key: {lang: text}}``; texts hold ``str.format`` fields."""
    path = Path(__file__).with_name("messages.json")
    raw: dict[str, dict[str, str]] = json.loads(path.read_text("utf-8"))
    return raw


def speaker(lang: str) -> Say:
    """The :data:`Say` of ``lang``; :class:`DetdiagError` for one that the catalogue lacks."""
    if lang not in LANGS:
        raise DetdiagError(f"unknown language {lang!r}", tip="known languages: " + ", ".join(LANGS))
    texts = catalogue()

    def say(key: str, /, **fields: Any) -> str:
        text = texts[key][lang]
        return text.format(**fields) if fields else text

    return say


def has(key: str) -> bool:
    """True if the catalogue has ``key``."""
    return key in catalogue()
